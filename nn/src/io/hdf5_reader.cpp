#include <hdf5.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <tessera/nn/io/hdf5.hpp>
#include <utility>

#include "io/blocks.hpp"
#include "io/decoding.hpp"
#include "io/netcdf_common.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr int kDepth = 32;
constexpr std::size_t kDatasets = 10'000;
constexpr hsize_t kAttributeLimit = 1 << 16;
constexpr std::size_t kSmallCache = 1 << 20, kLargeCache = 64 << 20;  // bytes of unpacked chunks
constexpr std::size_t kSieveBytes = 4096;

/// A handle that is closed by `close`.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// The library is called by one thread at a time, and does not print its errors.
class Library {
 public:
  Library() : lock_(netcdf_mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Library() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

/// How numbers of a type in the file are stored and read; nothing when they are none.
struct NumberType {
  StoredType type;
  bool complex = false;
};

std::optional<StoredType> simple_type(hid_t type) {
  const std::size_t size = H5Tget_size(type);
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_FLOAT) {
    if (size == 8) return StoredType::kFloat64;
    if (size == 4) return StoredType::kFloat32;
    // Half precision, not bfloat16 or a type of another kind.
    if (size == 2 && H5Tget_precision(type) == 16 && H5Tget_ebias(type) == 15)
      return StoredType::kFloat16;
  }
  if (kind != H5T_INTEGER) return std::nullopt;
  const bool has_sign = H5Tget_sign(type) == H5T_SGN_2;
  switch (size) {
    case 1:
      return has_sign ? StoredType::kInt8 : StoredType::kUInt8;
    case 2:
      return has_sign ? StoredType::kInt16 : StoredType::kUInt16;
    case 4:
      return has_sign ? StoredType::kInt32 : StoredType::kUInt32;
    case 8:
      return has_sign ? StoredType::kInt64 : StoredType::kUInt64;
    default:
      return std::nullopt;
  }
}

std::string member_name(hid_t type, unsigned index) {
  char* const name = H5Tget_member_name(type, index);
  const std::string result = name ? name : "";
  H5free_memory(name);
  return result;
}

std::optional<NumberType> number_type(hid_t type) {
  if (const auto simple = simple_type(type)) return NumberType{*simple};
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_ENUM && H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 &&
      member_name(type, 0) == "FALSE" && member_name(type, 1) == "TRUE")
    return NumberType{StoredType::kBool};
  if (kind != H5T_COMPOUND || H5Tget_nmembers(type) != 2 || member_name(type, 0) != "r" ||
      member_name(type, 1) != "i")
    return std::nullopt;
  const Handle r(H5Tget_member_type(type, 0), H5Tclose);
  const Handle i(H5Tget_member_type(type, 1), H5Tclose);
  const auto real = simple_type(r.get());
  if (!real || !is_floating(*real) || simple_type(i.get()) != real) return std::nullopt;
  return NumberType{*real, true};
}

hid_t native_type(StoredType type) {
  switch (type) {
    case StoredType::kInt8:
      return H5T_NATIVE_INT8;
    case StoredType::kUInt8:
      return H5T_NATIVE_UINT8;
    case StoredType::kInt16:
      return H5T_NATIVE_INT16;
    case StoredType::kUInt16:
      return H5T_NATIVE_UINT16;
    case StoredType::kInt32:
      return H5T_NATIVE_INT32;
    case StoredType::kUInt32:
      return H5T_NATIVE_UINT32;
    case StoredType::kInt64:
      return H5T_NATIVE_INT64;
    case StoredType::kUInt64:
      return H5T_NATIVE_UINT64;
    case StoredType::kFloat32:
      return H5T_NATIVE_FLOAT;
    default:
      return H5T_NATIVE_DOUBLE;
  }
}

/// The type of values in memory: as in the file, in this machine's byte order.
Handle memory_type(hid_t file_type, const NumberType& number) {
  if (number.type == StoredType::kBool) return {H5Tcopy(file_type), H5Tclose};
  if (number.complex) {
    const auto size = static_cast<std::size_t>(size_of(number.type));
    const Handle part(H5Tget_member_type(file_type, 0), H5Tclose);
    const Handle real = memory_type(part.get(), {number.type});
    Handle pair(H5Tcreate(H5T_COMPOUND, 2 * size), H5Tclose);
    H5Tinsert(pair.get(), "r", 0, real.get());
    H5Tinsert(pair.get(), "i", size, real.get());
    return pair;
  }
  if (number.type == StoredType::kFloat16) {
    Handle half(H5Tcopy(file_type), H5Tclose);
    H5Tset_order(half.get(), H5T_ORDER_LE);
    return half;
  }
  return {H5Tcopy(native_type(number.type)), H5Tclose};
}

std::optional<std::string> text_attribute(hid_t attribute, hid_t type, hsize_t count) {
  std::string lines;
  const auto append = [&](std::string_view text) {
    if (!lines.empty()) lines += '\n';
    lines += text.substr(0, std::min(text.find('\0'), text.size()));
  };
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_cset(memory.get(), H5Tget_cset(type));
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory.get(), H5T_VARIABLE);
    std::vector<char*> texts(count, nullptr);
    if (H5Aread(attribute, memory.get(), texts.data()) < 0) return std::nullopt;
    for (char* text : texts) {
      append(text ? text : "");
      H5free_memory(text);
    }
    return lines;
  }
  const std::size_t size = H5Tget_size(type);
  if (size == 0 || size > kAttributeLimit || size * count > 16 * kAttributeLimit)
    return std::nullopt;
  H5Tset_size(memory.get(), size);
  H5Tset_strpad(memory.get(), H5T_STR_NULLPAD);
  std::string texts(size * count, '\0');
  if (H5Aread(attribute, memory.get(), texts.data()) < 0) return std::nullopt;
  for (hsize_t i = 0; i < count; ++i) append(std::string_view(texts).substr(i * size, size));
  return lines;
}

/// What the library and netCDF-4 write for themselves.
bool is_internal(const std::string& name) {
  static const std::set<std::string> names = {
      "DIMENSION_LIST", "REFERENCE_LIST",      "CLASS",
      "NAME",           "DIMENSION_LABELS",    "_Netcdf4Dimid",
      "_NCProperties",  "_Netcdf4Coordinates", "_nc3_strict"};
  return names.count(name) > 0;
}

struct FileAttributes {
  Attributes values;
  std::set<std::string> floating;
};

FileAttributes read_attributes(hid_t object) {
  FileAttributes result;
  const int count = H5Aget_num_attrs(object);
  for (int i = 0; i < count; ++i) {
    const Handle a(H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, static_cast<hsize_t>(i),
                                  H5P_DEFAULT, H5P_DEFAULT),
                   H5Aclose);
    if (!a.valid()) continue;
    char name[256] = {};
    if (H5Aget_name(a.get(), sizeof(name), name) < 0 || is_internal(name)) continue;
    const Handle type(H5Aget_type(a.get()), H5Tclose);
    const Handle space(H5Aget_space(a.get()), H5Sclose);
    const hssize_t points = H5Sget_simple_extent_npoints(space.get());
    if (points < 1 || static_cast<hsize_t>(points) > kAttributeLimit) continue;
    if (H5Tget_class(type.get()) == H5T_STRING) {
      if (auto text = text_attribute(a.get(), type.get(), static_cast<hsize_t>(points)))
        result.values[name] = std::move(*text);
    } else if (simple_type(type.get())) {
      std::vector<double> values(static_cast<std::size_t>(points));
      if (H5Aread(a.get(), H5T_NATIVE_DOUBLE, values.data()) < 0) continue;
      result.values[name] = std::move(values);
      if (H5Tget_class(type.get()) == H5T_FLOAT) result.floating.insert(name);
    }
  }
  return result;
}

std::string object_name(hid_t object) {
  char name[1024] = {};
  if (H5Iget_name(object, name, sizeof(name)) <= 0) return "";
  return name[0] == '/' ? name + 1 : name;
}

bool has_text(hid_t object, const char* attribute, std::string_view start) {
  if (H5Aexists(object, attribute) <= 0) return false;
  const Handle a(H5Aopen(object, attribute, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(a.get()), H5Tclose);
  const Handle space(H5Aget_space(a.get()), H5Sclose);
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1)
    return false;
  const auto text = text_attribute(a.get(), type.get(), 1);
  return text && text->starts_with(start);
}

/// Names by the scales that are attached to the dimensions.
std::vector<std::string> dim_names(hid_t dataset, const std::string& name, int dims) {
  std::vector<std::string> names;
  for (int d = 0; d < dims; ++d) names.push_back(str("dim_", d));
  if (dims == 1 && has_text(dataset, "CLASS", "DIMENSION_SCALE")) names[0] = name;
  if (H5Aexists(dataset, "DIMENSION_LIST") <= 0) return names;
  const Handle a(H5Aopen(dataset, "DIMENSION_LIST", H5P_DEFAULT), H5Aclose);
  const Handle space(H5Aget_space(a.get()), H5Sclose);
  const Handle type(H5Aget_type(a.get()), H5Tclose);
  if (H5Sget_simple_extent_npoints(space.get()) != dims || H5Tget_class(type.get()) != H5T_VLEN)
    return names;
  const Handle base(H5Tget_super(type.get()), H5Tclose);
  if (H5Tequal(base.get(), H5T_STD_REF_OBJ) <= 0) return names;
  std::vector<hvl_t> lists(static_cast<std::size_t>(dims), hvl_t{0, nullptr});
  if (H5Aread(a.get(), type.get(), lists.data()) < 0) return names;
  for (std::size_t d = 0; d < lists.size(); ++d) {
    if (lists[d].len == 0) continue;
    const Handle scale(H5Rdereference2(dataset, H5P_DEFAULT, H5R_OBJECT, lists[d].p), H5Oclose);
    if (!scale.valid()) continue;
    const std::string found = object_name(scale.get());
    if (!found.empty()) names[d] = found;
  }
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, lists.data());
  return names;
}

}  // namespace

struct Hdf5Reader::State {
  struct Source {
    std::string name;
    NumberType number = {StoredType::kFloat32};
    Shape chunk;
    hid_t dataset = -1;  // opened at first use
    hid_t memory = -1;   // the type in memory
  };
  std::string path;
  hid_t file = -1;
  std::vector<Source> sources;

  ~State() {
    const Library library;
    for (const Source& s : sources) {
      if (s.memory >= 0) H5Tclose(s.memory);
      if (s.dataset >= 0) H5Dclose(s.dataset);
    }
    if (file >= 0) H5Fclose(file);
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(str(path, ": ", problem, "."));
  }

  /// A cache that holds a chunk, so that no chunk is unpacked for each of its rows.
  void open(Source& s) const {
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    if (!s.chunk.empty()) {
      const auto bytes = static_cast<std::size_t>(s.chunk.product() * size_of(s.number.type)) *
                         (s.number.complex ? 2 : 1);
      H5Pset_chunk_cache(access.get(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT,
                         std::clamp(2 * bytes, kSmallCache, kLargeCache), 1.0);
    }
    s.dataset = H5Dopen2(file, s.name.c_str(), access.get());
    if (s.dataset < 0) fail(str("dataset \"", s.name, "\" cannot be opened"));
    const Handle type(H5Dget_type(s.dataset), H5Tclose);
    Handle memory = memory_type(type.get(), s.number);
    s.memory = H5Tcopy(memory.get());
  }

  /// Bytes in the file of the chunks that a box touches.
  std::int64_t chunk_bytes(const Source& s, const Box& box, int dims) const {
    Box points;  // without the pairs of complex numbers
    for (int d = 0; d < dims; ++d) {
      points.lo.push_back(box.lo[d]);
      points.hi.push_back(box.hi[d]);
    }
    std::int64_t total = 0;
    for_each_index(chunks_of(points, s.chunk), [&](const Index& chunk) {
      hsize_t offset[kMaxDims] = {};
      for (int d = 0; d < dims; ++d) offset[d] = static_cast<hsize_t>(chunk[d] * s.chunk[d]);
      hsize_t bytes = 0;
      if (H5Dget_chunk_storage_size(s.dataset, offset, &bytes) >= 0)
        total += static_cast<std::int64_t>(bytes);
    });
    return total;
  }
};

Hdf5Reader::~Hdf5Reader() = default;

Hdf5Reader::Hdf5Reader(const std::string& path)
    : FieldReader(path), state_(std::make_unique<State>()) {
  state_->path = path;
  const File readable = File::open(path);  // for the system's own words when it cannot be
  const Library library;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_sieve_buf_size(access.get(), kSieveBytes);
  state_->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  if (state_->file < 0) state_->fail("cannot be opened as HDF5");
  scan();
}

void Hdf5Reader::scan() {
  const hid_t file = state_->file;
  std::set<haddr_t> seen;
  // A group with its path ("" or "a/b/"); only links within the file count.
  const std::function<void(hid_t, const std::string&, int)> visit =
      [&](hid_t group, const std::string& path, int depth) {
        H5G_info_t info;
        if (H5Gget_info(group, &info) < 0) state_->fail("a group cannot be listed");
        if (depth > kDepth) state_->fail(str("groups deeper than ", kDepth, " levels"));
        for (hsize_t i = 0; i < info.nlinks; ++i) {
          char name[512] = {};
          if (H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof(name),
                                 H5P_DEFAULT) <= 0)
            continue;
          H5L_info_t link;
          if (H5Lget_info(group, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
            continue;
          const Handle object(H5Oopen(group, name, H5P_DEFAULT), H5Oclose);
          if (!object.valid()) continue;
          const H5I_type_t kind = H5Iget_type(object.get());
          if (kind == H5I_GROUP) {
            H5O_info_t about;
            if (H5Oget_info2(object.get(), &about, H5O_INFO_BASIC) < 0 ||
                !seen.insert(about.addr).second)
              continue;
            visit(object.get(), str(path, name, "/"), depth + 1);
          } else if (kind == H5I_DATASET) {
            if (variables().size() >= kDatasets)
              state_->fail(str("holds more than ", kDatasets, " datasets"));
            // A dimension of netCDF-4 without values.
            if (has_text(object.get(), "NAME", "This is a netCDF dimension but not")) continue;
            add_dataset(object.get(), str(path, name));
          }
        }
      };
  const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose);
  if (!root.valid()) state_->fail("its root cannot be opened");
  visit(root.get(), "", 0);
  set_attributes(read_attributes(root.get()).values);
}

void Hdf5Reader::add_dataset(std::int64_t id, const std::string& name) {
  const hid_t dataset = id;
  FieldVariable v;
  v.name = name;
  Storage storage;
  State::Source source;
  source.name = name;
  const Handle type(H5Dget_type(dataset), H5Tclose);
  const Handle space(H5Dget_space(dataset), H5Sclose);
  const Handle created(H5Dget_create_plist(dataset), H5Pclose);
  const auto number = number_type(type.get());
  const int dims = H5Sget_simple_extent_ndims(space.get());
  const H5D_layout_t layout = H5Pget_layout(created.get());
  v.numeric = number && H5Sget_simple_extent_type(space.get()) != H5S_NULL && dims >= 0 &&
              dims + (number->complex ? 1 : 0) <= kMaxDims && layout != H5D_VIRTUAL &&
              H5Pget_external_count(created.get()) == 0;
  FileAttributes attributes = read_attributes(dataset);
  v.attributes = std::move(attributes.values);
  if (v.numeric) {
    hsize_t sizes[H5S_MAX_RANK] = {};
    H5Sget_simple_extent_dims(space.get(), sizes, nullptr);
    for (int d = 0; d < dims; ++d) v.shape.push_back(static_cast<std::int64_t>(sizes[d]));
    v.dims = dim_names(dataset, name, dims);
    if (layout == H5D_CHUNKED && H5Pget_chunk(created.get(), H5S_MAX_RANK, sizes) == dims)
      for (int d = 0; d < dims; ++d)
        source.chunk.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(sizes[d])));
    storage.type = number->type;
    storage.chunk = source.chunk;
    if (number->complex) {
      v.shape.push_back(2);
      v.dims.push_back("complex");
      if (!storage.chunk.empty()) storage.chunk.push_back(2);
    }
    source.number = *number;
    storage.decoding = make_decoding(storage.type, v.attributes, [&](const char* attribute) {
      return attributes.floating.count(attribute) > 0;
    });
  }
  add(std::move(v), std::move(storage));
  state_->sources.push_back(std::move(source));
}

void Hdf5Reader::read_raw(std::size_t variable, const Box& box, void* values) const {
  const Library library;
  State::Source& s = state_->sources[variable];
  if (s.dataset < 0) state_->open(s);
  const int dims = s.number.complex ? box.dims() - 1 : box.dims();
  hsize_t start[kMaxDims] = {};
  hsize_t count[kMaxDims] = {};
  std::int64_t points = 1;
  for (int d = 0; d < dims; ++d) {
    start[d] = static_cast<hsize_t>(box.lo[d]);
    count[d] = static_cast<hsize_t>(box[d].size());
    points *= box[d].size();
  }
  const Handle space(H5Dget_space(s.dataset), H5Sclose);
  const Handle memory(dims > 0 ? H5Screate_simple(dims, count, nullptr) : H5Screate(H5S_SCALAR),
                      H5Sclose);
  if (dims > 0 &&
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr) < 0)
    state_->fail(str("a part of \"", s.name, "\" cannot be chosen"));
  const std::int64_t element = size_of(s.number.type);
  // Of the pairs of complex numbers the box may hold one half.
  const bool halves = s.number.complex && box[dims].size() == 1;
  std::vector<std::byte> pairs;
  if (halves) pairs.resize(static_cast<std::size_t>(2 * points * element));
  if (H5Dread(s.dataset, s.memory, memory.get(), space.get(), H5P_DEFAULT,
              halves ? pairs.data() : values) < 0)
    state_->fail(str("values of \"", s.name, "\" cannot be read"));
  if (halves) {
    for (std::int64_t i = 0; i < points; ++i)
      std::copy_n(pairs.data() + (2 * i + box.lo[dims]) * element, element,
                  static_cast<std::byte*>(values) + i * element);
  }
  count_bytes(s.chunk.empty() ? points * element * (s.number.complex ? 2 : 1)
                              : state_->chunk_bytes(s, box, dims));
}

}  // namespace tessera::io
