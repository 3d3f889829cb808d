#include <glob.h>

#include <filesystem>
#include <string_view>
#include <tessera/nn/io/field_reader.hpp>
#include <tessera/nn/io/hdf5.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <tessera/nn/io/npy.hpp>
#include <tessera/nn/io/raw.hpp>
#include <tessera/nn/io/zarr.hpp>

#include "io/lower.hpp"
#include "io/series_reader.hpp"

namespace tessera::io {
namespace {

std::vector<std::string> files_of(const std::string& pattern) {
  glob_t found = {};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 || paths.empty())
    throw IoError(str(pattern, ": no file matches. Check the path."));
  return paths;
}

bool has_suffix(std::string path, std::string_view suffix) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path.size() > suffix.size() && lower(path).ends_with(suffix);
}

}  // namespace

std::unique_ptr<FieldReader> open_fields(const std::string& path, const OpenOptions& options) {
  if (path.find_first_of("*?") != std::string::npos) return open_fields(files_of(path), options);
  for (const char* suffix : {".h5", ".hdf5", ".he5"})
    if (has_suffix(path, suffix)) return std::make_unique<Hdf5Reader>(path);
  if (has_suffix(path, ".nii") || has_suffix(path, ".nii.gz"))
    return std::make_unique<NiftiReader>(path);
  if (has_suffix(path, ".npy")) return std::make_unique<NpyReader>(path);
  if (has_suffix(path, ".npz")) return std::make_unique<NpzReader>(path);
  if (has_suffix(path, ".raw"))
    return std::make_unique<RawReader>(path, read_raw_description(path + ".json"));
  std::error_code ignored;
  if (has_suffix(path, ".zarr") || std::filesystem::is_directory(path, ignored))
    return std::make_unique<ZarrReader>(path);
  return std::make_unique<NetcdfReader>(path);
}

std::unique_ptr<FieldReader> open_fields(const std::vector<std::string>& paths,
                                         const OpenOptions& options) {
  if (paths.size() == 1) return open_fields(paths.front(), options);
  return std::make_unique<SeriesReader>(paths, options.along);
}

}  // namespace tessera::io
