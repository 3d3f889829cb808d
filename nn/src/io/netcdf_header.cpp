#include "io/netcdf_header.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <tessera/core/error.hpp>

namespace tessera::io {
namespace {

constexpr std::int64_t kDimensions = 10, kVariables = 11, kAttributes = 12;  // tags of lists

// "The NetCDF Classic Format Specification" (docs.unidata.ucar.edu/netcdf-c), and its 64-bit forms.
class HeaderText {
 public:
  explicit HeaderText(bool wide) : wide_(wide) { text_ = wide ? "CDF\5" : "CDF\2"; }

  void number(std::int64_t value, int bytes) { put_number(text_, value, bytes); }
  /// Of things, or bytes.
  void count(std::int64_t value) { number(value, wide_ ? 8 : 4); }
  void name(const std::string& name) {
    count(std::ssize(name));
    text_ += name;
    pad();
  }
  void list(std::int64_t tag, std::size_t length) {
    number(length == 0 ? 0 : tag, 4);
    count(static_cast<std::int64_t>(length));
  }
  void value(NetcdfType type, double v) {
    switch (type) {
      case NetcdfType::kFloat64:
        number(std::bit_cast<std::int64_t>(v), 8);
        break;
      case NetcdfType::kFloat32:
        number(std::bit_cast<std::int32_t>(static_cast<float>(v)), 4);
        break;
      default:
        number(static_cast<std::int64_t>(v), static_cast<int>(size_of(type)));
    }
  }
  void attributes(const NetcdfAttributes& attributes, NetcdfType type, std::optional<double> fill) {
    list(kAttributes, attributes.size() + (fill ? 1 : 0));
    if (fill) numbers("_FillValue", type, {*fill});
    for (const auto& [key, value] : attributes) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        name(key);
        number(static_cast<std::int64_t>(NetcdfType::kText), 4);
        name(*text);
      } else {
        numbers(key, NetcdfType::kFloat64, std::get<std::vector<double>>(value));
      }
    }
  }
  const std::string& text() const { return text_; }

 private:
  void numbers(const std::string& key, NetcdfType type, const std::vector<double>& values) {
    name(key);
    number(static_cast<std::int64_t>(type), 4);
    count(std::ssize(values));
    for (const double v : values) value(type, v);
    pad();
  }
  void pad() { text_.resize(static_cast<std::size_t>(netcdf_padded(std::ssize(text_))), '\0'); }

  bool wide_;
  std::string text_;
};

void check_name(const std::string& name, const char* of, std::set<std::string>& names) {
  const auto allowed = [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '/'; };
  const bool starts = !name.empty() && (std::isalnum(static_cast<unsigned char>(name[0])) ||
                                        name[0] == '_' || (name[0] & 0x80) != 0);
  if (!starts || name.back() == ' ' || !std::all_of(name.begin(), name.end(), allowed))
    throw UsageError(str("netcdf: \"", name, "\" cannot be the name of ", of,
                         " (it begins with a letter, a digit or _, and has no / in it)."));
  if (!names.insert(name).second)
    throw UsageError(str("netcdf: two ", of, "s are named \"", name, "\". Names must differ."));
}

void check_attributes(const NetcdfAttributes& attributes) {
  std::set<std::string> names;
  for (const auto& [name, value] : attributes) check_name(name, "attribute", names);
}

}  // namespace

std::int64_t size_of(NetcdfType type) {
  switch (type) {
    case NetcdfType::kText:
    case NetcdfType::kUInt8:
      return 1;
    case NetcdfType::kInt16:
      return 2;
    case NetcdfType::kInt32:
    case NetcdfType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

void put_number(std::string& out, std::int64_t value, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::string format_netcdf_header(const std::vector<NetcdfDimension>& dimensions,
                                 std::vector<NetcdfPlace>& variables,
                                 const NetcdfAttributes& attributes) {
  constexpr std::int64_t kNarrow = std::int64_t{1} << 31;
  bool wide = false;
  std::set<std::string> names;
  for (const NetcdfDimension& d : dimensions) {
    check_name(d.name, "dimension", names);
    check_attributes(d.attributes);
    // A length of zero would mean that records are appended along it.
    if (d.size < 1)
      throw UsageError(str("netcdf: dimension \"", d.name, "\" has size ", d.size,
                           " (classic files have at least one point along each). Leave it out."));
    wide = wide || d.size >= kNarrow;
  }
  names.clear();
  for (const NetcdfPlace& v : variables) {
    check_name(v.name, "variable", names);
    check_attributes(v.attributes);
    wide = wide || v.type == NetcdfType::kUInt8 || v.type == NetcdfType::kInt64 ||
           v.shape.product() * size_of(v.type) >= kNarrow;
  }
  check_attributes(attributes);

  const auto write = [&] {
    HeaderText out(wide);
    out.count(0);  // records
    out.list(kDimensions, dimensions.size());
    for (const NetcdfDimension& d : dimensions) {
      out.name(d.name);
      out.count(d.size);
    }
    out.attributes(attributes, NetcdfType::kText, std::nullopt);
    out.list(kVariables, variables.size());
    for (const NetcdfPlace& v : variables) {
      out.name(v.name);
      out.count(std::ssize(v.dims));
      for (const int d : v.dims) out.count(d);
      out.attributes(v.attributes, v.type, v.fill);
      out.number(static_cast<std::int64_t>(v.type), 4);
      out.count(netcdf_padded(v.shape.product() * size_of(v.type)));
      out.number(v.begin, 8);
    }
    return out.text();
  };
  // Offsets have a fixed width, so the first text is as long as the second.
  std::int64_t end = std::ssize(write());
  for (NetcdfPlace& v : variables) {
    v.begin = end;
    end += netcdf_padded(v.shape.product() * size_of(v.type));
  }
  return write();
}

}  // namespace tessera::io
