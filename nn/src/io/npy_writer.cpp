#include <bit>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/npy_writer.hpp>

#include "io/part_file.hpp"
#include "io/stored_type.hpp"

static_assert(std::endian::native == std::endian::little, "arrays are written little endian");

namespace tessera::io {
namespace {

/// numpy.lib.format, version 1.0: padded so that the values begin at a multiple of 64 bytes.
std::string header_of(DType dtype, const Shape& shape) {
  std::string sizes;
  for (const std::int64_t n : shape) sizes += str(n, ", ");
  if (shape.size() > 1) sizes.resize(sizes.size() - 2);
  if (shape.size() == 1) sizes.resize(sizes.size() - 1);
  std::string text = str("{'descr': '", numpy_type(stored_type(dtype)),
                         "', 'fortran_order': False, 'shape': (", sizes, "), }");
  constexpr std::size_t kStart = 10;
  text.resize((kStart + text.size() + 64) / 64 * 64 - kStart - 1, ' ');
  text += '\n';
  std::string header("\x93NUMPY\1\0", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

void write_npy(const std::string& path, const Tensor& tensor) {
  const DType dtype = tensor.dtype() == DType::kBFloat16 ? DType::kFloat32 : tensor.dtype();
  const TensorPart part = part_in("npy", tensor, tensor.shape());
  const std::string header = header_of(dtype, tensor.shape());
  const Collective ranks = nn::collective(tensor.mesh());
  const auto start = std::ssize(header);
  PartFile file(path, header,
                start + tensor.shape().product() * static_cast<std::int64_t>(size_of(dtype)),
                ranks);
  ranks.together([&] {
    file.write_box("npy", {.offset = start, .shape = with_rows(tensor.shape()), .dtype = dtype},
                   part.box, part.view);
    file.sync();
  });
  file.commit();
}

}  // namespace tessera::io
