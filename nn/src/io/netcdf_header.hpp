#pragma once

#include <cstdint>
#include <string>
#include <tessera/nn/io/netcdf.hpp>
#include <vector>

namespace tessera::io {

/// Element types in files of the classic formats.
enum class NetcdfType : std::uint8_t {
  kText = 2,
  kInt16 = 3,
  kInt32 = 4,
  kFloat32 = 5,
  kFloat64 = 6,
  kUInt8 = 7,
  kInt64 = 10,
};

std::int64_t size_of(NetcdfType type);

/// Bytes with those that fill the last word of four.
constexpr std::int64_t netcdf_padded(std::int64_t bytes) { return (bytes + 3) / 4 * 4; }

/// A variable of a file that is about to be written.
struct NetcdfPlace {
  std::string name;
  std::vector<int> dims;
  Shape shape;
  NetcdfType type = NetcdfType::kFloat32;
  NetcdfAttributes attributes = {};
  std::optional<double> fill = {};  ///< in the variable's type
  std::int64_t begin = 0;           ///< of its values in the file
};

/// The header of a file with these dimensions and variables, in the oldest of the classic formats
/// that holds them (CDF-2: 64-bit offsets; CDF-5: also bytes, long integers and variables of 2
/// GiB), and where their values begin. Throws UsageError for names that NetCDF does not allow.
std::string format_netcdf_header(const std::vector<NetcdfDimension>& dimensions,
                                 std::vector<NetcdfPlace>& variables,
                                 const NetcdfAttributes& attributes);

/// Appends a number of `bytes` bytes, the highest first, as all numbers of these files are.
void put_number(std::string& out, std::int64_t value, int bytes);

}  // namespace tessera::io
