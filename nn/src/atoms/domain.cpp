#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/atoms/domain.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>
#include <type_traits>

#include "box_frame.hpp"

namespace tessera::nn {

namespace {

using Shift = std::array<std::int32_t, 3>;

struct Atom {
  std::int64_t id;
  std::int64_t origin;  // node before the rebuild
  Vec3 r;
  Shift image;  // unwrapped = r + image . cell
  std::int32_t species;
};

/// An atom of another rank that may be a neighbour.
struct Candidate {
  std::int64_t id;
  std::int64_t node;  // within its part
  Vec3 r;
  std::int64_t species;
};

/// The extent of a rank's atoms; lo > hi where it has none.
struct Extent {
  Vec3 lo{2, 2, 2};
  Vec3 hi{-1, -1, -1};
};

/// Sends list r to member r; what came, and from whom.
template <class T>
struct Arrived {
  std::vector<T> items;
  std::vector<std::int64_t> counts;
};

template <class T>
Arrived<T> exchange(const parallel::Group& group,
                    const std::vector<std::vector<T>>& lists,
                    const char* op) {
  static_assert(std::is_trivially_copyable_v<T>);
  const parallel::CallInfo info{op, {}, {}};
  const std::size_t count = lists.size();
  std::vector<std::int64_t> send(count);
  std::vector<T> items;
  for (std::size_t r = 0; r < count; ++r) {
    send[r] = static_cast<std::int64_t>(lists[r].size());
    items.insert(items.end(), lists[r].begin(), lists[r].end());
  }
  Arrived<T> arrived{{}, std::vector<std::int64_t>(count, 0)};
  const std::vector<std::int64_t> one(count, sizeof(std::int64_t));
  parallel::all_to_all(group, send.data(), one, arrived.counts.data(), one, info).wait();
  arrived.items.resize(static_cast<std::size_t>(
      std::accumulate(arrived.counts.begin(), arrived.counts.end(), std::int64_t{0})));
  std::vector<std::int64_t> out = send;
  std::vector<std::int64_t> in = arrived.counts;
  for (std::int64_t& b : out) b *= static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t& b : in) b *= static_cast<std::int64_t>(sizeof(T));
  parallel::all_to_all(group, items.data(), out, arrived.items.data(), in, info).wait();
  return arrived;
}

/// 1 - |F - 1| with new = old . F: no distance shrinks by more than this factor.
double least_stretch(const Cell& from, const Cell& to) {
  const kernels::Fractions fractions(from);
  double sum = 0.0;
  for (std::size_t a = 0; a < 3; ++a) {
    Vec3 unit{0, 0, 0};
    unit[a] = 1.0;
    const Vec3 f = fractions.of(unit.data());
    Vec3 row{0, 0, 0};
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t k = 0; k < 3; ++k) row[c] += f[k] * to.vectors[k][c];
    for (std::size_t c = 0; c < 3; ++c) sum += (row[c] - unit[c]) * (row[c] - unit[c]);
  }
  return 1.0 - std::sqrt(sum);
}

Vec3 minus(const Vec3& a, const Vec3& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }

}  // namespace

struct AtomDomain::State {
  Mesh mesh;
  DomainOptions options;
  std::vector<int> axes;
  parallel::Group group;
  std::int64_t part = 0;
  std::vector<std::size_t> member_of;  // by part
  std::vector<std::int64_t> part_of;   // by member
  Cell cell;
  std::vector<Atom> atoms;
  Graph graph;
  Tensor origin;
  std::vector<Vec3> reference;  // fractions at the last rebuild
  Cell reference_cell;
  std::optional<Regions> regions;
  std::int64_t rebuilds = 0;
  std::int64_t migrated = 0;

  std::int64_t parts() const { return static_cast<std::int64_t>(member_of.size()); }

  void start(const Mesh& on, const DomainOptions& with, const Cell& in) {
    if (dry_run()) {
      throw NotSupported(
          "atoms: where moving atoms lie has no plan without data. Plan with batch_graph().");
    }
    mesh = on;
    options = with;
    cell = in;
    cell.completed();
    if (!(options.cutoff > 0.0) || !(options.skin >= 0.0)) {
      throw UsageError(str("atoms: cutoff ", options.cutoff, " and skin ", options.skin,
                           " are not a positive length and one that is not negative."));
    }
    AxisMask mask = 0;
    if (options.axes.empty())
      for (int a = 0; a < mesh.axis_count(); ++a) axes.push_back(a);
    for (const std::string& name : options.axes) axes.push_back(mesh.axis(name));
    for (const int a : axes) mask |= AxisMask{1} << a;
    group = parallel::Group::of(mesh, mask);
    part = part_number(mesh, axes).part;
    const std::vector<int> members = mesh.group(mesh.rank(), mask);
    member_of.resize(members.size());
    for (std::size_t r = 0; r < members.size(); ++r) {
      std::int64_t number = 0;
      for (const int a : axes) number = number * mesh.axis_size(a) + mesh.coordinate(members[r], a);
      part_of.push_back(number);
      member_of[static_cast<std::size_t>(number)] = r;
    }
  }

  /// Throws the message on all members when any has one.
  void agree(const std::string& wrong) const {
    const auto bad = parallel::all_gather_counts(group, wrong.empty() ? 0 : 1, {"atoms", {}, {}});
    if (std::find(bad.begin(), bad.end(), 1) == bad.end()) return;
    throw ShapeError(wrong.empty() ? "atoms: another rank's atoms are at fault; see its message."
                                   : wrong);
  }

  void reduce(std::span<double> values, ReduceOp op) const {
    parallel::all_reduce(group, values.data(), static_cast<std::int64_t>(values.size()),
                         DType::kFloat64, op, {"atoms", {}, {}})
        .wait();
  }

  std::vector<double> flat() const {
    std::vector<double> r;
    r.reserve(3 * atoms.size());
    for (const Atom& a : atoms) r.insert(r.end(), a.r.begin(), a.r.end());
    return r;
  }

  double edge_imbalance() const {
    const Layout& edges = graph.receivers.layout();
    const std::int64_t total = graph.edge_count();
    if (total == 0 || !edges.is_split(0)) return 1.0;
    const Bounds& bounds = edges.split(0).bounds;
    std::int64_t most = 0;
    for (std::size_t p = 0; p + 1 < bounds.size(); ++p)
      most = std::max(most, bounds[p + 1] - bounds[p]);
    return static_cast<double>(most * parts()) / static_cast<double>(total);
  }

  BoxFrame frame() const {
    BoxFrame f(cell);
    if (f.cell.periodic[0] && f.cell.periodic[1] && f.cell.periodic[2]) return f;
    BoxFrame::Range r = f.range(flat());
    for (double& h : r.hi) h = -h;
    std::array<double, 6> ends{r.lo[0], r.lo[1], r.lo[2], r.hi[0], r.hi[1], r.hi[2]};
    reduce(ends, ReduceOp::kMin);
    f.set({{ends[0], ends[1], ends[2]}, {-ends[3], -ends[4], -ends[5]}});
    return f;
  }

  /// Whether the parts are others than before.
  bool cut(const BoxFrame& f, const std::vector<Vec3>& units) {
    if (options.cutting == Cutting::kBricks) {
      if (regions) return false;
      regions = Regions::bricks(brick_grid(f.heights(), cell.periodic, static_cast<int>(parts())));
      return true;
    }
    if (regions && edge_imbalance() <= options.imbalance) return false;
    // Work goes with the edges that a node receives.
    std::vector<std::int64_t> weights(atoms.size(), 1);
    if (rebuilds > 0) {
      const View begin = graph.first_edge.local();
      const std::int64_t end = graph.receivers.local_box().hi[0];
      for (std::int64_t i = 0; i < begin.size(); ++i) {
        const std::int64_t* const at = begin.as<std::int64_t>() + i;
        weights[static_cast<std::size_t>(i)] += (i + 1 < begin.size() ? at[1] : end) - at[0];
      }
    }
    regions = Regions::bisection(
        units, weights, f.heights(), static_cast<int>(parts()),
        [&](std::span<std::int64_t> counts) {
          parallel::all_reduce(group, counts.data(), static_cast<std::int64_t>(counts.size()),
                               DType::kInt64, ReduceOp::kSum, {"atoms", {}, {}})
              .wait();
        });
    return true;
  }

  void wrap() {
    std::vector<double> r = flat();
    const std::vector<std::int32_t> moved = wrap_positions(r, cell);
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      for (std::size_t k = 0; k < 3; ++k) {
        atoms[i].r[k] = r[3 * i + k];
        atoms[i].image[k] += moved[3 * i + k];
      }
    }
  }

  void migrate(const BoxFrame& f) {
    std::vector<Vec3> units;
    for (const Atom& a : atoms) units.push_back(f.unit(a.r.data()));
    const bool anew = cut(f, units);
    Vec3 margin;
    const Vec3 heights = f.heights();
    for (std::size_t k = 0; k < 3; ++k) margin[k] = 0.5 * options.skin / heights[k];
    std::vector<std::vector<Atom>> lists(member_of.size());
    std::int64_t left = 0;
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      const bool stays =
          !anew && rebuilds > 0 && regions->near(static_cast<int>(part), units[i], margin);
      const std::int64_t to = stays ? part : regions->part_of(units[i]);
      if (to != part) ++left;
      lists[member_of[static_cast<std::size_t>(to)]].push_back(atoms[i]);
    }
    atoms = exchange(group, lists, "migration").items;
    std::sort(atoms.begin(), atoms.end(), [](const Atom& a, const Atom& b) { return a.id < b.id; });
    const auto all = parallel::all_gather_counts(group, left, {"migration", {}, {}});
    migrated = std::accumulate(all.begin(), all.end(), std::int64_t{0});
  }

  /// Own atoms that some image of brings within the reach of another rank's atoms.
  std::vector<Candidate> candidates(const BoxFrame& f, std::vector<std::int64_t>& owner) const {
    std::vector<Vec3> units;
    Extent mine;
    for (const Atom& a : atoms) {
      units.push_back(f.unit(a.r.data()));
      for (std::size_t k = 0; k < 3; ++k) {
        mine.lo[k] = std::min(mine.lo[k], units.back()[k]);
        mine.hi[k] = std::max(mine.hi[k], units.back()[k]);
      }
    }
    std::vector<Extent> extents(member_of.size());
    parallel::all_gather(group, &mine, extents.data(), sizeof(Extent), {"ghosts", {}, {}}).wait();
    const Vec3 heights = f.heights();
    const double reach = (options.cutoff + options.skin) * (1.0 + 1e-9) + 1e-9;
    const auto within = [&](const Vec3& u, const Extent& e) {
      if (e.lo[0] > e.hi[0]) return false;
      for (std::size_t k = 0; k < 3; ++k) {
        double distance = std::max({0.0, e.lo[k] - u[k], u[k] - e.hi[k]});
        if (cell.periodic[k]) {
          distance = std::min({distance, std::max(0.0, e.lo[k] - (u[k] - 1.0)),
                               std::max(0.0, u[k] + 1.0 - e.hi[k])});
        }
        if (distance * heights[k] > reach) return false;
      }
      return true;
    };
    std::vector<std::vector<Candidate>> lists(member_of.size());
    for (std::size_t r = 0; r < lists.size(); ++r) {
      if (part_of[r] == part) continue;
      for (std::size_t i = 0; i < atoms.size(); ++i) {
        if (within(units[i], extents[r])) {
          lists[r].push_back(
              {atoms[i].id, static_cast<std::int64_t>(i), atoms[i].r, atoms[i].species});
        }
      }
    }
    const auto arrived = exchange(group, lists, "ghosts");
    owner.clear();
    for (std::size_t r = 0; r < lists.size(); ++r)
      owner.insert(owner.end(), static_cast<std::size_t>(arrived.counts[r]), part_of[r]);
    return arrived.items;
  }

  void build(const BoxFrame& f) {
    std::vector<std::int64_t> owner;
    const std::vector<Candidate> others = candidates(f, owner);
    std::vector<double> points = flat();
    std::vector<std::int64_t> keys;
    for (const Atom& a : atoms) keys.push_back(a.id);
    for (const Candidate& c : others) {
      points.insert(points.end(), c.r.begin(), c.r.end());
      keys.push_back(c.id);
    }
    const auto own = static_cast<std::int64_t>(atoms.size());
    kernels::NeighborList list;
    std::string wrong;
    try {
      list = kernels::find_neighbors(points, own, cell, options.cutoff + options.skin, keys);
      if (list.overlap[0] >= 0) {
        wrong = str("atoms: atoms ", keys[static_cast<std::size_t>(list.overlap[0])], " and ",
                    keys[static_cast<std::size_t>(list.overlap[1])],
                    " are at the same place. Remove one.");
      }
    } catch (const Error& e) {
      wrong = e.what();
    }
    agree(wrong);

    LocalGraph local;
    for (const Vec3& v : cell.vectors) local.cells.insert(local.cells.end(), v.begin(), v.end());
    for (const Atom& a : atoms) {
      local.ids.push_back(a.id);
      local.species.push_back(a.species);
    }
    local.graph_of_node.assign(atoms.size(), 0);
    points.resize(3 * atoms.size());
    local.positions = std::move(points);
    // Only those that an edge comes from become ghosts.
    std::vector<std::int64_t> row(others.size(), -1);
    for (const std::int64_t s : list.senders)
      if (s >= own) row[static_cast<std::size_t>(s - own)] = 0;
    std::vector<std::size_t> order;
    for (std::size_t c = 0; c < others.size(); ++c)
      if (row[c] == 0) order.push_back(c);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(owner[a], others[a].node) < std::pair(owner[b], others[b].node);
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::size_t c = order[i];
      row[c] = own + static_cast<std::int64_t>(i);
      local.ghost_part.push_back(owner[c]);
      local.ghost_node.push_back(others[c].node);
      local.ghost_species.push_back(others[c].species);
    }
    for (std::int64_t& s : list.senders)
      if (s >= own) s = row[static_cast<std::size_t>(s - own)];
    local.receivers = std::move(list.receivers);
    local.senders = std::move(list.senders);
    local.shifts = std::move(list.shifts);
    const auto counts = parallel::all_gather_counts(group, own, {"atoms", {}, {}});
    local.graph_sizes = {std::accumulate(counts.begin(), counts.end(), std::int64_t{0})};
    graph = make_graph(local, mesh, axes, options.dtype);
  }

  void rebuild() {
    const Layout before = graph.ghosts.defined() ? graph.nodes() : Layout{};
    const std::int64_t first = before.defined() ? before.local_box().lo[0] : 0;
    std::string wrong;
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      atoms[i].origin = first + static_cast<std::int64_t>(i);
      for (const double x : atoms[i].r) {
        if (std::isfinite(x) && std::abs(x) < 1e12) continue;
        wrong = str("atoms: atom ", atoms[i].id, " is at ", x,
                    " (not a place in a box). Take smaller steps, or check the forces.");
      }
    }
    agree(wrong);
    wrap();
    const BoxFrame f = frame();
    migrate(f);
    build(f);
    reference.clear();
    reference_cell = cell.completed();
    const kernels::Fractions fractions(reference_cell);
    std::vector<std::int64_t> origins;
    for (const Atom& a : atoms) {
      reference.push_back(fractions.of(a.r.data()));
      origins.push_back(a.origin);
    }
    origin = Tensor::from_local(
        View::dense(origins.data(), DType::kInt64, {static_cast<std::int64_t>(origins.size())}),
        graph.nodes());
    ++rebuilds;
  }

  bool move(const Tensor& given, const Cell& to) {
    const Layout expected = graph.nodes().with_inserted_dim(1, 3);
    if (!(given.shape() == expected.shape())) {
      throw ShapeError(str("atoms: positions ", given.shape(), " are not those of ",
                           graph.node_count(), " atoms [N, 3]. Carry values after a rebuild."));
    }
    if (!(to.periodic == cell.periodic))
      throw UsageError("atoms: the new cell repeats along other axes. Make a new domain.");
    const Cell full = to.completed();
    const Tensor placed = parallel::redistribute(given.detach(), expected, "atoms");
    const View r = placed.local();
    const kernels::Fractions old(cell.completed());
    const kernels::Fractions now(full);
    double most = 0.0;
    for (std::size_t i = 0; i < atoms.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      Vec3 x;
      for (std::int64_t c = 0; c < 3; ++c) {
        x[static_cast<std::size_t>(c)] =
            load_as_double(r.data, r.dtype, row * r.strides[0] + c * r.strides[1]);
      }
      // Lattice vectors that the caller has added or taken away are no motion.
      const Vec3 step = minus(x, now.cartesian(old.of(atoms[i].r.data())));
      const Vec3 f = now.of(step.data());
      Shift jump{};
      for (std::size_t k = 0; k < 3; ++k) {
        if (cell.periodic[k] && std::isfinite(f[k]) && std::abs(f[k]) < 1e9)
          jump[k] = static_cast<std::int32_t>(std::lround(f[k]));
      }
      atoms[i].r = minus(x, to.shift(jump));
      const Vec3 moved = minus(atoms[i].r, now.cartesian(reference[i]));
      const double square = moved[0] * moved[0] + moved[1] * moved[1] + moved[2] * moved[2];
      most = std::isnan(square) ? std::numeric_limits<double>::infinity() : std::max(most, square);
    }
    reduce({&most, 1}, ReduceOp::kMax);
    cell = to;
    const double stretch = full == reference_cell ? 1.0 : least_stretch(reference_cell, full);
    const double reach = (options.cutoff + options.skin) * stretch - 2.0 * std::sqrt(most);
    if (reach < options.cutoff) {
      rebuild();
      return true;
    }
    graph.positions = Tensor::empty(expected, options.dtype);
    const View out = graph.positions.mutable_local();
    for (std::size_t i = 0; i < atoms.size(); ++i)
      for (std::size_t k = 0; k < 3; ++k)
        store_double(out.data, out.dtype, static_cast<std::int64_t>(3 * i + k), atoms[i].r[k]);
    if (!(full == reference_cell)) {
      graph.cells = Tensor::from_function(
          Layout::replicated(mesh, {1, 3, 3}),
          [&](const Index& i) {
            return cell.vectors[static_cast<std::size_t>(i[1])][static_cast<std::size_t>(i[2])];
          },
          options.dtype);
    }
    return false;
  }
};

AtomDomain::AtomDomain(const Structure& whole, const Mesh& mesh, const DomainOptions& options)
    : state_(std::make_unique<State>()) {
  state_->start(mesh, options, whole.cell);
  const std::int64_t n = whole.atoms();
  if (static_cast<std::int64_t>(whole.positions.size()) != 3 * n) {
    throw ShapeError(
        str("atoms: ", whole.positions.size(), " coordinates of ", n, " atoms. Give 3 for each."));
  }
  const std::int64_t parts = state_->parts();
  for (std::int64_t i = n * state_->part / parts; i < n * (state_->part + 1) / parts; ++i) {
    const double* const r = &whole.positions[static_cast<std::size_t>(3 * i)];
    state_->atoms.push_back(
        {i, 0, {r[0], r[1], r[2]}, {0, 0, 0}, whole.species[static_cast<std::size_t>(i)]});
  }
  state_->rebuild();
}

AtomDomain::AtomDomain(const LocalAtoms& mine,
                       const Cell& cell,
                       const Mesh& mesh,
                       const DomainOptions& options)
    : state_(std::make_unique<State>()) {
  state_->start(mesh, options, cell);
  const std::size_t n = mine.ids.size();
  state_->agree(mine.species.size() == n && mine.positions.size() == 3 * n
                    ? ""
                    : str("atoms: ", n, " ids, ", mine.species.size(), " species and ",
                          mine.positions.size(),
                          " coordinates do not fit. Give 3 coordinates "
                          "and a species for each."));
  for (std::size_t i = 0; i < n; ++i) {
    const double* const r = &mine.positions[3 * i];
    state_->atoms.push_back({mine.ids[i], 0, {r[0], r[1], r[2]}, {0, 0, 0}, mine.species[i]});
  }
  state_->rebuild();
}

AtomDomain::~AtomDomain() = default;
AtomDomain::AtomDomain(AtomDomain&&) noexcept = default;

const Graph& AtomDomain::graph() const { return state_->graph; }
const Cell& AtomDomain::cell() const { return state_->cell; }
bool AtomDomain::move(const Tensor& positions) { return state_->move(positions, state_->cell); }
bool AtomDomain::move(const Tensor& positions, const Cell& cell) {
  return state_->move(positions, cell);
}
void AtomDomain::rebuild() { state_->rebuild(); }

Tensor AtomDomain::carry(const Tensor& x) const { return gather(x, state_->origin); }

Tensor AtomDomain::unwrapped() const {
  const State& s = *state_;
  const Tensor x = Tensor::empty(s.graph.positions.layout(), s.options.dtype);
  const View view = x.mutable_local();
  for (std::size_t i = 0; i < s.atoms.size(); ++i) {
    const Vec3 image = s.cell.shift(s.atoms[i].image);
    for (std::size_t k = 0; k < 3; ++k) {
      store_double(view.data, view.dtype, static_cast<std::int64_t>(3 * i + k),
                   s.atoms[i].r[k] + image[k]);
    }
  }
  return x;
}

Structure AtomDomain::collect(int root) const {
  const State& s = *state_;
  const Tensor ids = parallel::gather_to(s.graph.ids, root);
  const Tensor species = parallel::gather_to(s.graph.species, root);
  const Tensor positions = parallel::gather_to(s.graph.positions, root);
  Structure whole;
  whole.cell = s.cell;
  if (s.mesh.rank() != root) return whole;
  const auto n = static_cast<std::size_t>(s.graph.node_count());
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto* const id = ids.local().as<std::int64_t>();
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return id[a] < id[b]; });
  const View r = positions.local();
  for (const std::size_t i : order) {
    whole.species.push_back(static_cast<std::int32_t>(species.local().as<std::int64_t>()[i]));
    for (std::size_t k = 0; k < 3; ++k)
      whole.positions.push_back(
          load_as_double(r.data, r.dtype, static_cast<std::int64_t>(3 * i + k)));
  }
  wrap_positions(whole.positions, whole.cell);
  return whole;
}

std::int64_t AtomDomain::rebuilds() const { return state_->rebuilds; }
std::int64_t AtomDomain::migrated() const { return state_->migrated; }
double AtomDomain::imbalance() const { return state_->edge_imbalance(); }

}  // namespace tessera::nn
