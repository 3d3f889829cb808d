#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/zarr_writer.hpp>
#include <vector>

namespace tessera::app {

/// Fields that a command writes together with all ranks: a NetCDF file, or, where the name ends in
/// `.zarr`, a Zarr store. Calls are those of the writers of `io`.
class OutputFile {
 public:
  OutputFile(const Mesh& mesh,
             const std::string& path,
             const std::vector<io::NetcdfDimension>& dimensions,
             const std::vector<io::NetcdfVariableSpec>& variables,
             const io::NetcdfAttributes& attributes);
  void write_box(std::string_view variable, const Box& box, const View& data);
  void commit();

 private:
  std::optional<io::NetcdfWriter> netcdf_;
  std::optional<io::ZarrWriter> zarr_;
};

}  // namespace tessera::app
