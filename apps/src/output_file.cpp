#include "output_file.hpp"

#include <algorithm>
#include <tessera/nn/checkpoint.hpp>

namespace tessera::app {
namespace {

/// Points of a chunk at most.
constexpr std::int64_t kChunk = 1 << 18;

/// One field per chunk along dimensions that count fields; of the others the largest is halved.
io::ZarrArraySpec array_of(const io::NetcdfVariableSpec& v,
                           const std::vector<io::NetcdfDimension>& dimensions) {
  io::ZarrArraySpec array = {
      .name = v.name, .dims = v.dims, .dtype = v.dtype, .attributes = v.attributes};
  for (const std::string& name : v.dims) {
    const auto d = std::find_if(dimensions.begin(), dimensions.end(),
                                [&](const auto& x) { return x.name == name; });
    const bool counts = name == "time" || name == "field" || name == "sequence" || name == "sample";
    array.chunks.push_back(counts ? 1 : std::max<std::int64_t>(d->size, 1));
  }
  while (array.chunks.product() > kChunk) {
    std::int64_t& n = *std::max_element(array.chunks.begin(), array.chunks.end());
    n = (n + 1) / 2;
  }
  return array;
}

}  // namespace

OutputFile::OutputFile(const Mesh& mesh,
                       const std::string& path,
                       const std::vector<io::NetcdfDimension>& dimensions,
                       const std::vector<io::NetcdfVariableSpec>& variables,
                       const io::NetcdfAttributes& attributes) {
  if (!path.ends_with(".zarr")) {
    netcdf_.emplace(path, dimensions, variables, attributes, nn::collective(mesh));
    return;
  }
  std::vector<io::ZarrArraySpec> arrays;
  for (const io::NetcdfVariableSpec& v : variables) arrays.push_back(array_of(v, dimensions));
  zarr_.emplace(mesh, path, dimensions, arrays, attributes);
}

void OutputFile::write_box(std::string_view variable, const Box& box, const View& data) {
  if (netcdf_) return netcdf_->write_box(variable, box, data);
  zarr_->write_box(variable, box, data);
}

void OutputFile::commit() {
  if (netcdf_) return netcdf_->commit();
  zarr_->commit();
}

}  // namespace tessera::app
