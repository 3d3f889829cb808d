#include "atoms.hpp"

#include <filesystem>
#include <fstream>
#include <tessera/models/atomistic/empirical.hpp>
#include <tessera/models/atomistic/mace_potential.hpp>
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/extxyz.hpp>

#include "potential.hpp"

namespace tessera::app {

std::shared_ptr<const atomistic::Potential> load_potential(const PotentialChoice& choice,
                                                           const Mesh& mesh) {
  const io::Collective ranks = nn::collective(mesh);
  std::shared_ptr<const atomistic::Potential> empirical;
  PotentialFile file;
  ranks.together([&] {
    const std::string& name = choice.name;
    const bool parameters = name.rfind("vashishta:", 0) == 0;
    const bool path = name.find('/') != std::string::npos || name.ends_with(".safetensors");
    if (!parameters && (path || std::filesystem::is_directory(name))) {
      file = PotentialFile(choice.name);
      return;
    }
    empirical = atomistic::make_potential(choice.name);
    if (!choice.dtype.empty() || choice.radial_intervals >= 0) {
      throw UsageError(str("potential: ", choice.name,
                           " is no network (precision and radial intervals are of networks). Leave "
                           "--default-dtype and --radial-intervals out."));
    }
  });
  if (empirical) return empirical;
  if (choice.radial_intervals >= 0) file.options.radial_intervals = choice.radial_intervals;
  const DType dtype = choice.dtype.empty()        ? file.dtype
                      : choice.dtype == "float32" ? DType::kFloat32
                                                  : DType::kFloat64;
  return std::make_shared<atomistic::MacePotential>(std::make_shared<const models::Mace>(
      models::load_mace(file.path, file.options, mesh, dtype)));
}

nn::Structure read_frame(const std::string& path, std::int64_t index) {
  io::ExtxyzReader reader(path);
  nn::Structure frame;
  std::int64_t count = 0;
  for (nn::Structure next; reader.next(next); ++count) {
    frame = std::move(next);
    if (count == index) return frame;
  }
  if (count == 0)
    throw DataError(str("atoms: ", path, " has no structures. Give a file with at least one."));
  if (index >= 0) {
    throw DataError(str("atoms: ", path, " has ", count, " structures, not number ", index,
                        ". Give one from 0 on."));
  }
  return frame;
}

void keep_lines(const std::string& path, std::int64_t step) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::int64_t at = 0;
    if (words >> at && at > step) break;
    if (!in.eof()) kept += line + "\n";
  }
  in.close();
  std::ofstream out(path, std::ios::trunc);
  out << kept;
  if (!out.flush()) throw IoError(str("md: cannot write ", path, ". Make room where it is."));
}

void keep_frames(const std::string& path, std::int64_t step) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return;
  std::uintmax_t size = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream count(line);
    std::int64_t atoms = -1;
    if (!(count >> atoms) || !std::getline(in, line)) break;
    const std::size_t key = line.find(" step=");
    std::int64_t at = -1;
    if (key != std::string::npos) std::istringstream(line.substr(key + 6)) >> at;
    if (at > step) break;
    bool whole = true;
    for (std::int64_t i = 0; i < atoms && whole; ++i) whole = !!std::getline(in, line);
    if (!whole || in.eof()) break;  // cut off within a frame
    size = static_cast<std::uintmax_t>(in.tellg());
  }
  in.close();
  std::filesystem::resize_file(path, size);
}

}  // namespace tessera::app
