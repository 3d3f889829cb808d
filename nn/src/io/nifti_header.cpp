#include "io/nifti_header.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/convert.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kMaxDims = 7;
constexpr std::int64_t kLargestShort = 32767;
// Behind either header stand four bytes that announce extensions.
constexpr std::int64_t kStart1 = 352;
constexpr std::int64_t kStart2 = 544;

struct TypeRow {
  int code;
  StoredType type;
};
constexpr TypeRow kTypes[] = {
    {2, StoredType::kUInt8},    {256, StoredType::kInt8},    {4, StoredType::kInt16},
    {512, StoredType::kUInt16}, {8, StoredType::kInt32},     {768, StoredType::kUInt32},
    {1024, StoredType::kInt64}, {1280, StoredType::kUInt64}, {16, StoredType::kFloat32},
    {64, StoredType::kFloat64},
};

/// Where the fields of a version lie, in bytes.
struct Fields {
  int version;
  std::size_t bytes;
  std::size_t datatype, bitpix, dim, pixdim, offset, slope, inter, description, qform, sform,
      quaternion, rows, magic;
};
constexpr Fields kFields1 = {1, 348, 70, 72, 40, 76, 108, 112, 116, 148, 252, 254, 256, 280, 344};
constexpr Fields kFields2 = {2, 540, 12, 14, 16, 104, 168, 176, 184, 240, 344, 348, 352, 400, 4};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  NiftiLayout operator()() {
    choose_version();
    check_magic();
    NiftiLayout layout;
    layout.array.swapped = swapped_;
    NiftiHeader& h = layout.header;
    h.version = f_.version;
    read_type(layout);
    read_shape(layout);
    read_offset(layout);
    for (std::size_t d = 0; d < 3; ++d) h.spacing[d] = real(f_.pixdim, d + 1);
    read_scaling(h);
    read_affine(h);
    const auto* const text = reinterpret_cast<const char*>(bytes_.data() + f_.description);
    h.description.assign(text, strnlen(text, 80));
    return layout;
  }

 private:
  [[noreturn]] void refuse(const std::string& why, const std::string& advice) const {
    throw DataError(str("nifti: cannot read ", path_, " (", why, "). ", advice));
  }
  template <class T>
  T get(std::size_t at) const {
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), bytes_.data() + at, sizeof(T));
    if (swapped_) std::reverse(raw.begin(), raw.end());
    return std::bit_cast<T>(raw);
  }
  /// Element i of a field that is float in version 1 and double in version 2.
  double real(std::size_t at, std::size_t i = 0) const {
    return f_.version == 1 ? get<float>(at + 4 * i) : get<double>(at + 8 * i);
  }

  void choose_version() {
    for (const Fields& f : {kFields1, kFields2}) {
      if (bytes_.size() < f.bytes) continue;
      for (const bool swapped : {false, true}) {
        swapped_ = swapped;
        f_ = f;
        if (get<std::int32_t>(0) == static_cast<std::int32_t>(f.bytes)) return;
      }
    }
    refuse("it does not begin with the header of a NIfTI-1 or NIfTI-2 file",
           "Give a .nii or .nii.gz file.");
  }
  void check_magic() const {
    const auto* const magic = reinterpret_cast<const char*>(bytes_.data() + f_.magic);
    const char* const single = f_.version == 1 ? "n+1" : "n+2";
    const char* const pair = f_.version == 1 ? "ni1" : "ni2";
    if (std::memcmp(magic, single, 4) == 0) return;
    if (std::memcmp(magic, pair, 4) == 0)
      refuse("it is the header of a pair .hdr and .img", "Convert the pair to one .nii file.");
    refuse("it lacks NIfTI's mark, as files of Analyze do", "Convert it to a .nii file.");
  }
  void read_type(NiftiLayout& layout) const {
    const int code = get<std::int16_t>(f_.datatype);
    const int bits = get<std::int16_t>(f_.bitpix);
    for (const TypeRow& row : kTypes) {
      if (row.code != code) continue;
      layout.header.type = layout.array.type = row.type;
      if (bits != 8 * size_of(row.type))
        refuse(str("its header says ", bits, " bits per voxel, but the type is ", name(row.type)),
               "Write it anew with a program that reads it.");
      return;
    }
    refuse(str("voxels of data type ", code,
               " are neither integers of 8 to 64 bits nor float32 or float64"),
           "Convert them to one of these.");
  }
  void read_shape(NiftiLayout& layout) const {
    const auto dim = [&](std::size_t i) -> std::int64_t {
      return f_.version == 1 ? get<std::int16_t>(f_.dim + 2 * i)
                             : get<std::int64_t>(f_.dim + 8 * i);
    };
    const std::int64_t count = dim(0);
    if (count < 1 || count > kMaxDims)
      refuse(str("its header says ", count, " dimensions"), "The file is damaged.");
    for (std::int64_t d = count; d >= 1; --d) {
      const std::int64_t n = dim(static_cast<std::size_t>(d));
      if (n < 1) refuse(str("dimension ", d, " has size ", n), "The file is damaged.");
      layout.array.shape.push_back(n);
    }
    layout.header.shape = layout.array.shape;
    const std::optional<std::int64_t> bytes = checked_bytes(layout.array.shape, layout.array.type);
    if (!bytes) refuse("its sizes exceed 64 bits", "The file is damaged.");
    layout.end = *bytes;
  }
  void read_offset(NiftiLayout& layout) const {
    const std::int64_t least = f_.version == 1 ? kStart1 : kStart2;
    std::int64_t& from = layout.array.offset;
    if (f_.version == 1) {
      const double offset = get<float>(f_.offset);
      if (!(offset >= 0.0 && offset <= 0x1p53 && offset == std::floor(offset)))
        refuse(str("its voxels begin at byte ", offset), "The file is damaged.");
      from = static_cast<std::int64_t>(offset);
    } else {
      from = get<std::int64_t>(f_.offset);
    }
    if (from == 0) from = least;  // as SPM writes it
    if (from < least || __builtin_add_overflow(layout.end, from, &layout.end))
      refuse(str("its voxels begin at byte ", from, ", the header ends at ", least),
             "The file is damaged.");
  }
  void read_scaling(NiftiHeader& h) const {
    const double slope = real(f_.slope);
    const double intercept = real(f_.inter);
    if (slope == 0.0 || !std::isfinite(slope)) return;  // none, says the standard
    if (!std::isfinite(intercept))
      refuse(str("values are to be scaled by ", slope, " with the intercept ", intercept),
             "The file is damaged.");
    h.slope = slope;
    h.intercept = intercept;
  }
  void read_affine(NiftiHeader& h) const {
    const auto code = [&](std::size_t at) -> int {
      return f_.version == 1 ? get<std::int16_t>(at) : get<std::int32_t>(at);
    };
    if (code(f_.sform) > 0) {
      for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t c = 0; c < 4; ++c) h.affine[r][c] = real(f_.rows, 4 * r + c);
      return;
    }
    if (code(f_.qform) > 0) {
      const double b = real(f_.quaternion), c = real(f_.quaternion, 1), d = real(f_.quaternion, 2);
      const double a = std::sqrt(std::max(0.0, 1.0 - b * b - c * c - d * d));
      const double mirrored = real(f_.pixdim) < 0.0 ? -1.0 : 1.0;
      const double turn[3][3] = {
          {a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)},
          {2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)},
          {2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c}};
      for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t k = 0; k < 3; ++k)
          h.affine[r][k] = turn[r][k] * h.spacing[k] * (k == 2 ? mirrored : 1.0);
        h.affine[r][3] = real(f_.quaternion, 3 + r);
      }
      return;
    }
    for (std::size_t d = 0; d < 3; ++d) h.affine[d][d] = h.spacing[d];
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
  Fields f_ = kFields1;
  bool swapped_ = false;
};

}  // namespace

NiftiLayout parse_nifti(std::span<const std::byte> start, const std::string& path) {
  return Parser(start, path)();
}

std::string format_nifti(const NiftiSpec& spec) {
  const int dims = spec.shape.size();
  if (dims < 1 || dims > kMaxDims)
    throw UsageError(
        str("nifti: ", dims, " dimensions (the format has 1 to ", kMaxDims, "). Write a part."));
  std::int64_t longest = 0;
  for (const std::int64_t n : spec.shape) {
    if (n < 1)
      throw UsageError(str("nifti: shape ", spec.shape, " (the format has no empty dimension)."));
    longest = std::max(longest, n);
  }
  const Fields& f = longest > kLargestShort ? kFields2 : kFields1;
  const bool first = f.version == 1;
  std::string out(static_cast<std::size_t>(first ? kStart1 : kStart2), '\0');
  const auto put = [&]<class T>(std::size_t at, T value) {
    std::memcpy(out.data() + at, &value, sizeof(T));
  };
  const auto real = [&](std::size_t at, std::size_t i, double value) {
    if (first) {
      put(at + 4 * i, static_cast<float>(value));
    } else {
      put(at + 8 * i, value);
    }
  };
  const auto dim = [&](std::size_t i, std::int64_t value) {
    if (first) {
      put(f.dim + 2 * i, static_cast<std::int16_t>(value));
    } else {
      put(f.dim + 8 * i, value);
    }
  };
  const auto code = [&](std::size_t at, int value) {
    if (first) {
      put(at, static_cast<std::int16_t>(value));
    } else {
      put(at, value);
    }
  };
  put(0, static_cast<std::int32_t>(f.bytes));
  const StoredType stored = stored_type(common_type(spec.dtype));
  const TypeRow* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                           [&](const TypeRow& row) { return row.type == stored; });
  put(f.datatype, static_cast<std::int16_t>(type->code));
  put(f.bitpix, static_cast<std::int16_t>(8 * size_of(stored)));
  dim(0, dims);
  for (std::size_t d = 1; d <= kMaxDims; ++d) {
    const int from = dims - static_cast<int>(d);
    dim(d, from >= 0 ? spec.shape[from] : 1);
    real(f.pixdim, d, d <= 3 ? spec.spacing[d - 1] : 1.0);
  }
  real(f.pixdim, 0, 1.0);
  if (first) {
    put(f.offset, static_cast<float>(out.size()));
  } else {
    put(f.offset, static_cast<std::int64_t>(out.size()));
  }
  real(f.slope, 0, 1.0);
  code(f.sform, 2);  // aligned with something else: what the affine says
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t c = 0; c < 4; ++c) real(f.rows, 4 * r + c, spec.affine[r][c]);
  spec.description.copy(out.data() + f.description, 79);
  static constexpr char kMagic2[] = "n+2\0\r\n\032\n";
  std::memcpy(out.data() + f.magic, first ? "n+1" : kMagic2, first ? 4 : 8);
  constexpr char kMillimetres = 2;
  out[first ? 123 : 500] = kMillimetres;
  return out;
}

}  // namespace tessera::io
