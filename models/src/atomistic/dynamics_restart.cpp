#include <map>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "dynamics_state.hpp"

namespace tessera::atomistic {

std::vector<double> Dynamics::State::extras() const {
  std::vector<double> list;
  for (const nn::Vec3& a : domain->cell().vectors) list.insert(list.end(), a.begin(), a.end());
  for (const Chain* c : {&atoms_chain, &box_chain}) {
    list.insert(list.end(), c->x.begin(), c->x.end());
    list.insert(list.end(), c->v.begin(), c->v.end());
  }
  list.insert(list.end(), strain_rate.begin(), strain_rate.end());
  list.push_back(heat);
  return list;
}

void Dynamics::State::write(const std::string& path) const {
  const nn::Graph& graph = domain->graph();
  const std::int64_t n = atoms();
  std::string periodic;
  for (const bool p : domain->cell().periodic) periodic += p ? 'T' : 'F';
  io::SafetensorsWriter writer(path,
                               {{"ids", DType::kInt64, {n}},
                                {"species", DType::kInt64, {n}},
                                {"positions", DType::kFloat64, {n, 3}},
                                {"velocities", DType::kFloat64, {n, 3}},
                                {"extras", DType::kFloat64, {kExtras}},
                                {"step", DType::kInt64, {1}}},
                               {{"kind", "tessera molecular dynamics"}, {"periodic", periodic}},
                               nn::collective(mesh));
  writer.write("ids", graph.ids);
  writer.write("species", graph.species);
  writer.write("positions", domain->positions());
  writer.write("velocities", velocities);
  const auto whole = [&](const char* name, void* data, DType dtype, std::int64_t count) {
    const Layout layout = Layout::replicated(mesh, {count});
    writer.write(name, Tensor::from_local(View::dense(data, dtype, {count}), layout));
  };
  std::vector<double> list = extras();
  std::int64_t steps = step;
  whole("extras", list.data(), DType::kFloat64, kExtras);
  whole("step", &steps, DType::kInt64, 1);
  writer.commit();
}

void Dynamics::State::read(const std::string& path) {
  const io::SafetensorsReader reader(path);
  const auto kind = reader.metadata().find("kind");
  const auto periodic = reader.metadata().find("periodic");
  if (kind == reader.metadata().end() || kind->second != "tessera molecular dynamics" ||
      periodic == reader.metadata().end() || periodic->second.size() != 3) {
    throw DataError(str("dynamics: ", path,
                        " is no state of a run of molecular dynamics. Give one that was saved."));
  }
  const Shape shape = reader.entry("positions").shape;
  const auto holds = [&](const char* name, std::int64_t rows, std::int64_t width) {
    const Shape& is = reader.entry(name).shape;
    return is.size() == (width == 0 ? 1 : 2) && is[0] == rows && (width == 0 || is[1] == width);
  };
  const std::int64_t n = shape.size() == 0 ? 0 : shape[0];
  if (!holds("positions", n, 3) || !holds("velocities", n, 3) || !holds("ids", n, 0) ||
      !holds("species", n, 0) || !holds("extras", kExtras, 0) || !holds("step", 1, 0)) {
    throw DataError(str("dynamics: ", path, " has lists of other lengths. Give a whole file."));
  }
  std::vector<double> list(static_cast<std::size_t>(kExtras));
  reader.read_box("extras", Box{{0}, {kExtras}},
                  View::dense(list.data(), DType::kFloat64, {kExtras}));
  reader.read_box("step", Box{{0}, {1}}, View::dense(&step, DType::kInt64, {1}));
  const double* at = list.data();
  const auto take = [&](auto& array) {
    for (double& x : array) x = *at++;
  };
  nn::Cell cell;
  for (nn::Vec3& a : cell.vectors) take(a);
  for (std::size_t k = 0; k < 3; ++k) cell.periodic[k] = periodic->second[k] == 'T';
  for (Chain* c : {&atoms_chain, &box_chain}) {
    take(c->x);
    take(c->v);
  }
  take(strain_rate);
  heat = *at;

  std::vector<int> axes;
  for (int a = 0; a < mesh.axis_count(); ++a) axes.push_back(a);
  if (!options.axes.empty()) {
    axes.clear();
    for (const std::string& axis : options.axes) axes.push_back(mesh.axis(axis));
  }
  const nn::PartNumber part = nn::part_number(mesh, axes);
  const std::int64_t lo = n * part.part / part.parts;
  const std::int64_t hi = n * (part.part + 1) / part.parts;
  const auto count = static_cast<std::size_t>(hi - lo);
  nn::LocalAtoms mine;
  mine.ids.resize(count);
  mine.positions.resize(3 * count);
  std::vector<std::int64_t> species(count);
  const Shape some = {hi - lo};
  reader.read_box("ids", Box{{lo}, {hi}}, View::dense(mine.ids.data(), DType::kInt64, some));
  reader.read_box("species", Box{{lo}, {hi}}, View::dense(species.data(), DType::kInt64, some));
  reader.read_box("positions", Box{{lo, 0}, {hi, 3}},
                  View::dense(mine.positions.data(), DType::kFloat64, {hi - lo, 3}));
  for (const std::int64_t z : species) mine.species.push_back(static_cast<std::int32_t>(z));
  domain.emplace(mine, cell, mesh, domain_options());
  begin();

  // Each rank looks through the list for its own atoms, piece by piece.
  velocities = new_velocities();
  std::map<std::int64_t, std::int64_t> place;
  for (std::int64_t i = 0; i < own(); ++i)
    place[domain->graph().ids.local().as<std::int64_t>()[i]] = i;
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(n, kPiece)));
  std::vector<double> values(3 * ids.size());
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t last = std::min(n, first + kPiece);
    reader.read_box("ids", Box{{first}, {last}},
                    View::dense(ids.data(), DType::kInt64, {last - first}));
    reader.read_box("velocities", Box{{first, 0}, {last, 3}},
                    View::dense(values.data(), DType::kFloat64, {last - first, 3}));
    for (std::int64_t k = 0; k < last - first; ++k) {
      const auto found = place.find(ids[static_cast<std::size_t>(k)]);
      if (found == place.end()) continue;
      for (std::int64_t c = 0; c < 3; ++c)
        v()[3 * found->second + c] = values[static_cast<std::size_t>(3 * k + c)];
    }
  }
}

}  // namespace tessera::atomistic
