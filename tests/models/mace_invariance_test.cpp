// ranks: 1
// What physics asks of Mace, on random structures with small and skewed cells.
#include "mace_support.hpp"

namespace tessera::test {
namespace {

/// Variants that together take every branch of the model.
std::vector<MaceOptions> variants() {
  MaceOptions o = golden_options();
  o.elements = {1, 8, 14};
  o.e0 = {-0.5, -1.5, -2.5};
  o.r_max = 3.0;
  o.channels = 8;
  o.radial_mlp = {16};
  std::vector<MaceOptions> all(4, o);
  all[1].max_L = 2;
  all[1].max_ell = 2;
  all[1].correlation = 2;
  all[1].layers = 3;
  all[1].first_block = MaceOptions::FirstBlock::kAgnostic;
  all[1].couplings = kernels::CouplingBasis::kReduced;
  all[2].max_L = 0;
  all[2].density = true;
  all[2].agnesi = true;
  all[2].pair_repulsion = true;
  all[3].density = true;
  all[3].radial_intervals = 100;
  return all;
}

/// Atoms at least 0.9 A apart in a skewed cell that is smaller than twice the cutoff.
nn::Structure random_structure(Rng& rng, int atoms = 7) {
  nn::Structure s;
  s.cell.vectors = {{{4.1, 0.3, -0.2}, {-0.9, 3.8, 0.4}, {0.5, 0.6, 4.4}}};
  s.cell.periodic = {true, true, true};
  while (s.atoms() < atoms) {
    const nn::Vec3 f{rng.real(), rng.real(), rng.real()};
    double r[3] = {};
    for (std::size_t k = 0; k < 3; ++k)
      for (std::size_t c = 0; c < 3; ++c) r[c] += f[k] * s.cell.vectors[k][c];
    bool near = false;
    for (std::int64_t j = 0; j < s.atoms(); ++j) {
      for (int a = -1; a <= 1; ++a)
        for (int b = -1; b <= 1; ++b)
          for (int c = -1; c <= 1; ++c) {
            const nn::Vec3 shift = s.cell.shift({a, b, c});
            double d2 = 0.0;
            for (std::size_t k = 0; k < 3; ++k) {
              const double d = r[k] - s.positions[static_cast<std::size_t>(3 * j) + k] + shift[k];
              d2 += d * d;
            }
            near = near || d2 < 0.81;
          }
    }
    if (near) continue;
    s.positions.insert(s.positions.end(), r, r + 3);
    s.species.push_back(
        std::vector<std::int32_t>{1, 8, 14}[static_cast<std::size_t>(rng.integer(0, 2))]);
  }
  return s;
}

struct Answer {
  double energy;
  DenseArray node_energy, forces, stress, virials, node_virials;
};

Answer answer(const Mace& model, const nn::Structure& s) {
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{s}, Mesh::self(),
                                          {.cutoff = model.options().r_max});
  const NoGrad no_grad;
  const MaceResult r = model.compute(graph, {.stress = true, .node_virials = true});
  CHECK_FALSE(requires_grad(r.energy));
  return {r.energy.at({0}),          in_order(r.node_energy, graph),
          in_order(r.forces, graph), to_dense(r.stress),
          to_dense(r.virials),       in_order(r.node_virials, graph)};
}

using Matrix = std::array<std::array<double, 3>, 3>;

/// A random rotation, of determinant -1 for `mirror`.
Matrix rotation(Rng& rng, bool mirror) {
  double q[4];
  double norm = 0.0;
  for (double& x : q) {
    x = rng.real(-1.0, 1.0);
    norm += x * x;
  }
  for (double& x : q) x /= std::sqrt(norm);
  const double w = q[0], x = q[1], y = q[2], z = q[3];
  Matrix m = {{{1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)},
               {2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)},
               {2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)}}};
  if (mirror)
    for (auto& row : m)
      for (double& v : row) v = -v;
  return m;
}

void rotate(const Matrix& m, double* r) {
  const double old[3] = {r[0], r[1], r[2]};
  for (std::size_t i = 0; i < 3; ++i) r[i] = m[i][0] * old[0] + m[i][1] * old[1] + m[i][2] * old[2];
}

/// m x m^T for each 3 x 3 block.
DenseArray rotated_tensors(const Matrix& m, DenseArray x) {
  for (std::size_t at = 0; at < x.values.size(); at += 9) {
    for (std::size_t i = 0; i < 3; ++i) rotate(m, &x.values[at + 3 * i]);
    for (std::size_t j = 0; j < 3; ++j) {
      double column[3];
      for (std::size_t i = 0; i < 3; ++i) column[i] = x.values[at + 3 * i + j];
      rotate(m, column);
      for (std::size_t i = 0; i < 3; ++i) x.values[at + 3 * i + j] = column[i];
    }
  }
  return x;
}

constexpr double kTight = 1e-12;

void check_same(const Answer& a, const Answer& b) {
  CHECK(std::abs(a.energy - b.energy) <= kTight * std::abs(b.energy));
  CHECK(compare("node energies", a.node_energy, b.node_energy, kTight) == "");
  CHECK(compare("forces", a.forces, b.forces, kTight, 1.0) == "");
  CHECK(compare("stress", a.stress, b.stress, kTight, 0.1) == "");
  CHECK(compare("node virials", a.node_virials, b.node_virials, kTight, 1.0) == "");
}

/// x with all rows from `from`, by atom.
DenseArray permuted(const DenseArray& x, const std::vector<std::size_t>& from) {
  DenseArray y(x.shape);
  const std::size_t row = x.values.size() / from.size();
  for (std::size_t n = 0; n < from.size(); ++n)
    for (std::size_t k = 0; k < row; ++k) y.values[n * row + k] = x.values[from[n] * row + k];
  return y;
}

}  // namespace

TEST_CASE("mace: energies do not depend on the frame, vectors and tensors turn with it") {
  Rng rng(run_seed());
  for (const MaceOptions& o : variants()) {
    Mace model(o, Mesh::self(), DType::kFloat64);
    const nn::Structure s = random_structure(rng);
    INFO("seed " << run_seed() << ", L " << o.max_L);
    const Answer one = answer(model, s);

    for (const bool mirror : {false, true}) {
      const Matrix m = rotation(rng, mirror);
      nn::Structure turned = s;
      for (std::size_t i = 0; i < s.positions.size(); i += 3) rotate(m, &turned.positions[i]);
      for (nn::Vec3& v : turned.cell.vectors) rotate(m, v.data());
      Answer expected = one;
      for (std::size_t i = 0; i < expected.forces.values.size(); i += 3)
        rotate(m, &expected.forces.values[i]);
      expected.stress = rotated_tensors(m, one.stress);
      expected.node_virials = rotated_tensors(m, one.node_virials);
      check_same(answer(model, turned), expected);
    }

    nn::Structure moved = s;
    for (std::size_t i = 0; i < s.positions.size(); ++i)
      moved.positions[i] += i % 3 == 1 ? 0.7 : -1.3;
    check_same(answer(model, moved), one);

    nn::Structure wrapped = s;
    for (std::int64_t i = 0; i < s.atoms(); ++i) {
      const nn::Vec3 shift = s.cell.shift({static_cast<std::int32_t>(rng.integer(-2, 2)),
                                           static_cast<std::int32_t>(rng.integer(-2, 2)),
                                           static_cast<std::int32_t>(rng.integer(-2, 2))});
      for (std::size_t c = 0; c < 3; ++c)
        wrapped.positions[static_cast<std::size_t>(3 * i) + c] += shift[c];
    }
    check_same(answer(model, wrapped), one);

    std::vector<std::size_t> order(static_cast<std::size_t>(s.atoms()));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = (3 * i + 1) % order.size();
    nn::Structure shuffled = s;
    for (std::size_t i = 0; i < order.size(); ++i) {
      shuffled.species[i] = s.species[order[i]];
      for (std::size_t c = 0; c < 3; ++c)
        shuffled.positions[3 * i + c] = s.positions[3 * order[i] + c];
    }
    Answer expected = one;
    expected.node_energy = permuted(one.node_energy, order);
    expected.forces = permuted(one.forces, order);
    expected.node_virials = permuted(one.node_virials, order);
    check_same(answer(model, shuffled), expected);
  }
}

TEST_CASE("mace: twice the cell is twice the energy and the same forces and stress") {
  Rng rng(run_seed());
  for (const MaceOptions& o : variants()) {
    Mace model(o, Mesh::self(), DType::kFloat64);
    const nn::Structure s = random_structure(rng);
    const Answer one = answer(model, s);
    const auto axis = static_cast<std::size_t>(rng.integer(0, 2));
    nn::Structure twice = s;
    for (std::size_t i = 0; i < s.positions.size(); ++i)
      twice.positions.push_back(s.positions[i] + s.cell.vectors[axis][i % 3]);
    twice.species.insert(twice.species.end(), s.species.begin(), s.species.end());
    for (double& v : twice.cell.vectors[axis]) v *= 2;
    const Answer two = answer(model, twice);
    CHECK(std::abs(two.energy - 2 * one.energy) <= kTight * std::abs(two.energy));
    CHECK(compare("stress", two.stress, one.stress, kTight, 0.1) == "");
    for (std::size_t i = 0; i < two.forces.values.size(); ++i) {
      CHECK(std::abs(two.forces.values[i] - one.forces.values[i % one.forces.values.size()]) <=
            kTight * std::max(1.0, one.forces.largest()));
    }
  }
}

TEST_CASE("mace: forces and stress are the derivatives of the energy") {
  Rng rng(run_seed());
  constexpr double kStep = 1e-4;
  for (const MaceOptions& o : variants()) {
    Mace model(o, Mesh::self(), DType::kFloat64);
    const nn::Structure s = random_structure(rng);
    INFO("seed " << run_seed() << ", L " << o.max_L);
    const Answer one = answer(model, s);
    const double size = std::max(1.0, one.forces.largest());

    double total[3] = {};
    for (std::size_t i = 0; i < one.forces.values.size(); ++i) total[i % 3] += one.forces.values[i];
    for (const double f : total) CHECK(std::abs(f) <= kTight * size);

    const auto energy_of = [&](const auto& change, double by) {
      nn::Structure changed = s;
      change(changed, by);
      return answer(model, changed).energy;
    };
    const auto slope = [&](const auto& change) {
      // Fourth order: the second would need a smaller step than rounding allows.
      return (8 * (energy_of(change, kStep) - energy_of(change, -kStep)) -
              (energy_of(change, 2 * kStep) - energy_of(change, -2 * kStep))) /
             (12 * kStep);
    };
    for (int draw = 0; draw < 6; ++draw) {
      const auto i = static_cast<std::size_t>(rng.integer(0, 3 * s.atoms() - 1));
      const double difference = slope([&](nn::Structure& c, double by) { c.positions[i] += by; });
      CHECK(std::abs(difference + one.forces.values[i]) <= 1e-7 * size);
    }
    const double volume = s.cell.volume();
    for (int draw = 0; draw < 3; ++draw) {
      const auto i = static_cast<std::size_t>(rng.integer(0, 2));
      const auto j = static_cast<std::size_t>(rng.integer(0, 2));
      const double difference = slope([&](nn::Structure& c, double by) {
        const auto strain = [&](double* r) {
          const double ri = r[i], rj = r[j];
          r[i] += 0.5 * by * rj;
          r[j] += 0.5 * by * ri;
        };
        for (std::size_t a = 0; a < c.positions.size(); a += 3) strain(&c.positions[a]);
        for (nn::Vec3& v : c.cell.vectors) strain(v.data());
      });
      CHECK(std::abs(difference - volume * one.stress.values[3 * i + j]) <=
            1e-7 * std::max(size, volume * one.stress.largest()));
      CHECK(std::abs(one.virials.values[3 * i + j] + volume * one.stress.values[3 * i + j]) <=
            kTight * size * 10);
    }
    DenseArray sums({1, 3, 3});
    for (std::size_t k = 0; k < one.node_virials.values.size(); ++k)
      sums.values[k % 9] += one.node_virials.values[k];
    CHECK(compare("sum of node virials", sums, one.virials, kTight, 1.0) == "");
  }
}

TEST_CASE("mace: edges beyond the cutoff and lone atoms add nothing") {
  MaceOptions o = variants()[2];
  Mace model(o, Mesh::self(), DType::kFloat64);
  Rng rng(run_seed());
  const nn::Structure s = random_structure(rng);
  const Answer one = answer(model, s);
  const nn::Graph wide =
      nn::batch_graph(std::vector<nn::Structure>{s}, Mesh::self(), {.cutoff = 1.3 * o.r_max});
  const MaceResult r = model.compute(wide, {});
  CHECK(std::abs(r.energy.at({0}) - one.energy) <= kTight * std::abs(one.energy));
  CHECK(compare("forces", in_order(r.forces, wide), one.forces, kTight, 1.0) == "");

  nn::Structure lone;
  lone.species = {14};
  lone.positions = {0.1, 0.2, 0.3};
  const Answer alone = answer(model, lone);
  CHECK(std::isfinite(alone.energy));
  CHECK(alone.forces.largest() == 0.0);
  CHECK(alone.stress.largest() == 0.0);

  lone.species = {6};
  CHECK_THROWS_WITH(answer(model, lone), Catch::Contains("element 6"));
}

}  // namespace tessera::test
