#include <algorithm>
#include <exception>
#include <optional>
#include <tessera/nn/io/nifti.hpp>
#include <vector>

#include "io/convert.hpp"
#include "io/nifti_header.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlock = 1 << 20;  // bytes converted at a time

DType stored(DType dtype) {
  if (dtype == DType::kBFloat16) return DType::kFloat32;
  return dtype == DType::kBool ? DType::kUInt8 : dtype;
}

}  // namespace

struct NiftiWriter::State {
  std::string path;
  std::string temporary;
  Collective collective;
  Shape shape;
  DType dtype = DType::kFloat32;
  std::int64_t offset = 0;
  std::optional<File> file;
  std::exception_ptr failure;
  std::int64_t written = 0;
  bool owns_temporary = false;

  ~State() {
    if (owns_temporary) remove_quietly(temporary);
  }
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
  s.shape = spec.shape;
  s.dtype = stored(spec.dtype);
  s.offset = static_cast<std::int64_t>(header.size());
  s.temporary = temporary_name(path, collective.broadcast(unique_id()));
  collective.together([&] {
    if (collective.rank != 0) return;
    check_replaceable(path);
    remove_stale_temporaries(path);
    s.file.emplace(File::create(s.temporary));
    s.owns_temporary = true;
    s.file->write(header.data(), s.offset, 0);
    s.file->resize(s.offset + s.shape.product() * static_cast<std::int64_t>(size_of(s.dtype)));
  });
  collective.together([&] {
    if (collective.rank != 0) s.file.emplace(File::modify(s.temporary));
  });
}

void NiftiWriter::write_box(const Box& box, const View& data) {
  State& s = *state_;
  check_convertible("nifti", data.dtype, s.dtype);
  const BoxRows rows("nifti", s.shape, box, data);
  if (s.failure) return;
  const auto element = static_cast<std::int64_t>(size_of(s.dtype));
  const auto from = static_cast<std::int64_t>(size_of(data.dtype));
  const std::int64_t most = std::min(kBlock / element, rows.row_length());
  std::vector<std::byte> block(static_cast<std::size_t>(most * element));
  try {
    rows.for_each([&](std::int64_t array_offset, std::int64_t view_offset) {
      for (std::int64_t done = 0; done < rows.row_length(); done += most) {
        const std::int64_t count = std::min(most, rows.row_length() - done);
        convert(static_cast<const std::byte*>(data.data) +
                    (view_offset + done * rows.view_stride()) * from,
                data.dtype, rows.view_stride(), block.data(), s.dtype, 1, count);
        s.file->write(block.data(), count * element, s.offset + (array_offset + done) * element);
      }
    });
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
  if (written != s.shape.product())
    throw UsageError(str("nifti: ", written, " of ", s.shape.product(), " voxels were written to ",
                         s.path,
                         " (parts are missing, or were written twice). Write each part once."));
  s.collective.together([&] {
    if (s.collective.rank == 0) commit_file(s.temporary, s.path);
  });
  s.owns_temporary = false;
}

}  // namespace tessera::io
