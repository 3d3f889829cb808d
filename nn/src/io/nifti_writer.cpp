#include <exception>
#include <optional>
#include <tessera/nn/io/nifti.hpp>

#include "io/convert.hpp"
#include "io/nifti_header.hpp"
#include "io/part_file.hpp"

namespace tessera::io {

struct NiftiWriter::State {
  std::string path;
  Collective collective;
  FileArray array;
  std::optional<PartFile> file;
  std::exception_ptr failure;  // the first that this rank met while writing
  std::int64_t written = 0;
};

NiftiWriter::NiftiWriter(NiftiWriter&&) noexcept = default;
NiftiWriter::~NiftiWriter() = default;

NiftiWriter::NiftiWriter(const std::string& path,
                         const NiftiSpec& spec,
                         const Collective& collective)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (path.ends_with(".gz"))
    throw UsageError(str("nifti: ", path,
                         " (files are written uncompressed, by all ranks at once). Leave out the "
                         ".gz, and compress the file afterwards."));
  const std::string header = format_nifti(spec);
  s.path = path;
  s.collective = collective;
  s.array = {.offset = std::ssize(header), .shape = spec.shape, .dtype = common_type(spec.dtype)};
  s.file.emplace(path, header, s.array.offset + s.array.shape.product() * s.array.element_bytes(),
                 collective);
}

void NiftiWriter::write_box(const Box& box, const View& data) {
  State& s = *state_;
  check_convertible("nifti", data.dtype, s.array.dtype);
  const BoxRows checked("nifti", s.array.shape, box, data);
  if (s.failure) return;
  try {
    s.file->write_box("nifti", s.array, box, data);
    s.written += box.volume();
  } catch (const IoError&) {
    s.failure = std::current_exception();
  }
}

void NiftiWriter::commit() {
  State& s = *state_;
  s.collective.together([&] {
    if (s.failure) std::rethrow_exception(s.failure);
    s.file->sync();
  });
  const std::int64_t written = s.collective.total(s.written);
  check_complete("nifti", written, s.array.shape.product(), "voxels", s.path);
  s.file->commit();
}

}  // namespace tessera::io
