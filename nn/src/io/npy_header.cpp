#include "io/npy_header.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kHeaderLimit = 1 << 20;

/// The literal of a Python dictionary, as far as headers use it.
class Literal {
 public:
  Literal(const std::string& where, std::string_view text) : where_(where), text_(text) {}

  [[noreturn]] void fail(const char* problem) const {
    throw DataError(str(where_, ": damaged NumPy header (", problem, " at character ", at_, ")."));
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* problem) {
    if (!take(c)) fail(problem);
  }
  std::string string() {
    skip();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("no text");
    const char quote = text_[at_++];
    std::string value;
    for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\\' || static_cast<unsigned char>(text_[at_]) < ' ')
        fail("a strange character");
      value += text_[at_];
    }
    expect(quote, "a text without end");
    return value;
  }
  bool boolean() {
    skip();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    fail("neither True nor False");
  }
  std::int64_t size() {
    skip();
    std::int64_t value = 0;
    std::size_t digits = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
         ++at_, ++digits)
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[at_] - '0', &value))
        fail("a size beyond 63 bits");
    if (digits == 0) fail("no size");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // Python 2
    return value;
  }
  /// Anything in brackets, skipped.
  std::string list() {
    skip();
    const std::size_t start = at_;
    int depth = 0;
    do {
      if (at_ >= text_.size()) fail("a list without end");
      if (text_[at_] == '[' || text_[at_] == '(') ++depth;
      if (text_[at_] == ']' || text_[at_] == ')') --depth;
      ++at_;
    } while (depth > 0);
    return std::string(text_.substr(start, std::min<std::size_t>(at_ - start, 60)));
  }
  bool starts_with(char c) {
    skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  void expect_end() {
    skip();
    if (at_ != text_.size()) fail("more than one literal");
  }

 private:
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }

  const std::string& where_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

NpyHeader read_npy_header(const std::string& where, std::int64_t size, const ReadAt& read) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  unsigned char start[12] = {};
  if (size < 10) throw DataError(str(where, ": not a NumPy array (", size, " bytes)."));
  read(start, 10, 0);
  if (std::memcmp(start, kMagic.data(), kMagic.size()) != 0)
    throw DataError(str(where, ": not a NumPy array (its first bytes say so)."));
  const int version = start[6];
  if (version < 1 || version > 3)
    throw DataError(str(where, ": NumPy format ", version, ". Formats 1 to 3 can be read."));
  const std::int64_t prefix = version == 1 ? 10 : 12;
  if (version > 1) {
    if (size < prefix) throw DataError(str(where, ": not a NumPy array (", size, " bytes)."));
    read(start + 10, 2, 10);
  }
  std::int64_t length = start[8] | start[9] << 8;
  if (version > 1) length |= std::int64_t{start[10]} << 16 | std::int64_t{start[11]} << 24;
  if (length > size - prefix || length > kHeaderLimit)
    throw DataError(str(where, ": damaged NumPy header (", length, " bytes long, of ", size,
                        " bytes in all)."));
  std::string text(static_cast<std::size_t>(length), '\0');
  if (length > 0) read(text.data(), length, prefix);

  NpyHeader header;
  std::vector<std::int64_t> shape;
  bool seen[3] = {};
  Literal literal(where, text);
  literal.expect('{', "no dictionary");
  while (!literal.take('}')) {
    const std::string key = literal.string();
    literal.expect(':', "no value");
    const int k = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
    if (k < 0 || seen[k]) literal.fail("an unknown key, or one twice");
    seen[k] = true;
    if (k == 0) {
      header.descr = literal.starts_with('[') ? literal.list() : literal.string();
    } else if (k == 1) {
      header.column_major = literal.boolean();
    } else {
      literal.expect('(', "no shape");
      while (!literal.take(')')) {
        if (shape.size() >= 64) literal.fail("more than 64 dimensions");
        shape.push_back(literal.size());
        if (literal.take(')')) break;
        literal.expect(',', "no comma");
      }
    }
    if (literal.take('}')) break;
    literal.expect(',', "no comma");
  }
  literal.expect_end();
  if (!seen[0] || !seen[1] || !seen[2]) literal.fail("descr, fortran_order or shape is missing");

  header.array.offset = prefix + length;
  const auto type = parse_numpy_type(header.descr);
  if (!type) return header;
  header.complex = type->complex;
  if (std::ssize(shape) + (header.complex ? 1 : 0) > kMaxDims) return header;
  header.numeric = true;
  for (const std::int64_t n : shape) header.array.shape.push_back(n);
  if (header.complex) header.array.shape.push_back(2);
  header.array.type = type->type;
  header.array.swapped = type->big_endian;
  if (header.column_major)
    header.array.order = column_major_order(header.array.shape.size(), header.complex);
  const auto bytes = checked_bytes(header.array.shape, header.array.type);
  if (!bytes || *bytes > size - header.array.offset)
    throw DataError(str(where, ": cut off (the shape ", header.array.shape, " of ", header.descr,
                        " needs more than the ", size - header.array.offset,
                        " bytes that there are). Get the file again."));
  return header;
}

FieldVariable npy_variable(const std::string& name, const NpyHeader& header) {
  FieldVariable v;
  v.name = name;
  v.numeric = header.numeric;
  v.shape = header.array.shape;
  for (int d = 0; d < v.shape.size(); ++d)
    v.dims.push_back(header.complex && d + 1 == v.shape.size() ? "complex" : str("dim_", d));
  return v;
}

}  // namespace tessera::io
