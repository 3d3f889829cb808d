#include "io/part_file.hpp"

#include <algorithm>
#include <tessera/nn/io/safetensors.hpp>
#include <vector>

#include "io/convert.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlock = 1 << 20;  // bytes gathered before a write

}  // namespace

PartFile::PartFile(const std::string& path,
                   std::string_view head,
                   std::int64_t bytes,
                   const Collective& collective)
    : path_(path),
      temporary_(temporary_name(path, collective.broadcast(unique_id()))),
      collective_(collective) {
  try {
    collective.together([&] {
      if (collective.rank != 0) return;
      check_replaceable(path);
      remove_stale_temporaries(path);
      file_.emplace(File::create(temporary_));
      owns_temporary_ = true;
      file_->write(head.data(), static_cast<std::int64_t>(head.size()), 0);
      file_->resize(bytes);
    });
    collective.together([&] {
      if (collective.rank != 0) file_.emplace(File::modify(temporary_));
    });
  } catch (...) {
    if (owns_temporary_) remove_quietly(temporary_);
    throw;
  }
}

PartFile::~PartFile() {
  if (owns_temporary_) remove_quietly(temporary_);
}

void PartFile::write_box(const char* op,
                         const FileArray& array,
                         const Box& box,
                         const View& data) const {
  const std::int64_t bytes = array.element_bytes();
  for_each_run(op, array.shape, box, data, array.dtype,
               [&](std::byte* elements, std::int64_t first, std::int64_t count) {
                 if (array.encode) array.encode(elements, count);
                 file_->write(elements, count * bytes, array.offset + first * bytes);
               });
}

void PartFile::commit() {
  collective_.together([&] {
    if (collective_.rank == 0) commit_file(temporary_, path_);
  });
  owns_temporary_ = false;
}

void check_complete(const char* op,
                    std::int64_t written,
                    std::int64_t total,
                    const std::string& what,
                    const std::string& path) {
  if (written != total)
    throw UsageError(str(op, ": ", written, " of ", total, " ", what, " were written to ", path,
                         " (parts are missing, or were written twice). Write each part once."));
}

void for_each_run(const char* op,
                  const Shape& shape,
                  const Box& box,
                  const View& data,
                  DType dtype,
                  const std::function<void(std::byte*, std::int64_t, std::int64_t)>& f) {
  check_convertible(op, data.dtype, dtype);
  const BoxRows rows(op, shape, box, data);
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto data_element = static_cast<std::int64_t>(size_of(data.dtype));
  const auto* const source = static_cast<const std::byte*>(data.data);
  const std::int64_t most = std::max<std::int64_t>(
      1, std::min(kBlock / element, std::max<std::int64_t>(box.volume(), 1)));
  std::vector<std::byte> block(static_cast<std::size_t>(most * element));
  std::int64_t begin = 0;
  std::int64_t filled = 0;
  const auto flush = [&] {
    if (filled > 0) f(block.data(), begin, filled);
    filled = 0;
  };
  rows.for_each([&](std::int64_t array_offset, std::int64_t view_offset) {
    for (std::int64_t done = 0; done < rows.row_length();) {
      if (filled > 0 && (begin + filled != array_offset + done || filled == most)) flush();
      if (filled == 0) begin = array_offset + done;
      const std::int64_t count = std::min(rows.row_length() - done, most - filled);
      convert(source + (view_offset + done * rows.view_stride()) * data_element, data.dtype,
              rows.view_stride(), block.data() + filled * element, dtype, 1, count);
      filled += count;
      done += count;
    }
  });
  flush();
}

Shape with_rows(const Shape& shape) { return shape.empty() ? Shape{1} : shape; }

TensorPart part_in(const char* op, const Tensor& tensor, const Shape& array, const Index& at) {
  const Shape shape = with_rows(array);
  if (tensor.layout().partial_axes() != 0)
    throw LayoutError(str(op, ": cannot write a tensor in layout ", tensor.layout().str(),
                          " (Partial: its sum was not yet taken). Redistribute it first."));
  TensorPart part = {tensor.local_box(), tensor.local()};
  // Of the samples the local part may hold none; it is then empty in what is left, too.
  const bool empty = part.box.empty();
  Shape whole = with_rows(tensor.shape());
  if (part.box.dims() == 0) {
    part.box = Box::whole(whole);
    part.view.shape = whole;
    part.view.strides = {1};
  }
  const auto drop = [&](int d) {
    whole.erase(d);
    part.box.lo.erase(d);
    part.box.hi.erase(d);
    part.view.shape.erase(d);
    part.view.strides.erase(d);
  };
  const int more = whole.size() - shape.size();
  if (more >= 1 && more <= 2 && whole[whole.size() - 1] == 1) drop(whole.size() - 1);
  if (more == 2 && whole[0] == 1) drop(0);
  bool fits = whole.size() == shape.size() && (at.empty() || at.size() == shape.size());
  for (int d = 0; fits && d < shape.size(); ++d) {
    const std::int64_t start = at.empty() ? 0 : at[d];
    fits = at.empty() ? whole[d] == shape[d] : start >= 0 && start + whole[d] <= shape[d];
    part.box.set(d, {part.box.lo[d] + start, part.box.hi[d] + start});
  }
  if (!fits)
    throw ShapeError(
        str(op, ": a tensor of shape ", tensor.shape(),
            at.empty() ? std::string() : str(" at ", at), " does not fit ", array,
            " (dimensions must be the same, but for samples and channels of size 1)."));
  if (empty || !is_first_replica(tensor.layout())) {
    part.box.hi = part.box.lo;
    part.view.shape = part.box.shape();
  }
  return part;
}

}  // namespace tessera::io
