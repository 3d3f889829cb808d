#include "io/safetensors_header.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/dense_array.hpp"

namespace tessera::io {
namespace {

// Takes the header token by token and accepts nothing but the format's own structure, so that
// neither deep nesting nor long lists cost memory.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader result;
  std::vector<std::int64_t> ends;  // data_offsets[1] of each entry
  std::string problem;

  bool start_object(std::size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kTop;
      return true;
    }
    if (where_ == Where::kTop && !key_.empty_or_used()) {
      where_ = key_.take() == "__metadata__" ? Where::kMetadata : Where::kTensor;
      return true;
    }
    return reject("an object where none belongs");
  }
  bool key(string_t& text) override {
    if (where_ == Where::kTop) {
      if (!names_.insert(text).second) return reject(str("the name \"", text, "\" occurs twice"));
      key_.set(text);
      if (text != "__metadata__") {
        entry_ = {};
        entry_.name = text;
        has_dtype_ = has_shape_ = has_offsets_ = false;
        entry_end_ = 0;
      }
      return true;
    }
    if (where_ == Where::kMetadata) {
      if (result.metadata.count(text))
        return reject(str("the metadata key \"", text, "\" occurs twice"));
      key_.set(text);
      return true;
    }
    bool& seen = text == "dtype" ? has_dtype_ : text == "shape" ? has_shape_ : has_offsets_;
    if (text != "dtype" && text != "shape" && text != "data_offsets")
      return reject(str("unknown field \"", text, "\" of tensor \"", entry_.name, "\""));
    if (seen)
      return reject(str("field \"", text, "\" of tensor \"", entry_.name, "\" occurs twice"));
    seen = true;
    key_.set(text);
    return true;
  }
  bool string(string_t& text) override {
    if (where_ == Where::kMetadata) {
      result.metadata.emplace(key_.take(), text);
      return true;
    }
    if (where_ == Where::kTensor && key_.is("dtype")) {
      key_.take();
      const bool half = text == "F16";
      if (half) result.halves.insert(entry_.name);
      const std::optional<DType> type = half ? DType::kFloat32 : dtype_of_safetensors(text);
      if (!type) {
        return reject(
            str("tensor \"", entry_.name, "\" has the unsupported element type \"", text, "\""));
      }
      entry_.dtype = *type;
      return true;
    }
    return reject("a text where none belongs");
  }
  bool start_array(std::size_t) override {
    if (where_ == Where::kTensor && key_.is("shape")) {
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && key_.is("data_offsets")) {
      where_ = Where::kOffsets;
    } else {
      return reject("a list where none belongs");
    }
    key_.take();
    numbers_.clear();
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::kShape && where_ != Where::kOffsets)
      return reject("a number where none belongs");
    if (!std::in_range<std::int64_t>(value))
      return reject(str("the number ", value, " is too large"));
    if (numbers_.size() == static_cast<std::size_t>(kMaxDims))
      return reject(
          str("a list of more than ", kMaxDims, " numbers in tensor \"", entry_.name, "\""));
    numbers_.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool end_array() override {
    if (where_ == Where::kShape) {
      entry_.shape = Shape(numbers_);
    } else {
      if (numbers_.size() != 2)
        return reject(str("data_offsets of tensor \"", entry_.name, "\" are not two numbers"));
      entry_.offset = numbers_[0];
      entry_end_ = numbers_[1];
    }
    where_ = Where::kTensor;
    return true;
  }
  bool end_object() override {
    if (where_ == Where::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_)
        return reject(str("tensor \"", entry_.name, "\" lacks dtype, shape or data_offsets"));
      result.entries.push_back(entry_);
      ends.push_back(entry_end_);
      where_ = Where::kTop;
    } else if (where_ == Where::kMetadata) {
      where_ = Where::kTop;
    } else {
      where_ = Where::kEnd;
    }
    return true;
  }
  bool null() override { return reject("null where it does not belong"); }
  bool boolean(bool) override { return reject("a truth value where none belongs"); }
  bool number_integer(number_integer_t value) override {
    return reject(str("the negative number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return reject(str("the number ", text, ", which is not a 63-bit integer"));
  }
  bool binary(binary_t&) override { return reject("binary data"); }
  bool parse_error(std::size_t position,
                   const std::string&,
                   const nlohmann::detail::exception&) override {
    return reject(str("not valid JSON at byte ", position));
  }

 private:
  enum class Where { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  // The key whose value comes next.
  class Key {
   public:
    void set(const std::string& text) {
      text_ = text;
      pending_ = true;
    }
    bool is(std::string_view text) const { return pending_ && text_ == text; }
    bool empty_or_used() const { return !pending_; }
    const std::string& take() {
      pending_ = false;
      return text_;
    }

   private:
    std::string text_;
    bool pending_ = false;
  };

  bool reject(std::string why) {
    if (problem.empty()) problem = std::move(why);
    return false;
  }

  Where where_ = Where::kStart;
  Key key_;
  std::set<std::string> names_;
  std::vector<std::int64_t> numbers_;
  SafetensorsReader::Entry entry_;
  std::int64_t entry_end_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

}  // namespace

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kFloat64:
      return "F64";
    case DType::kBFloat16:
      return "BF16";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kUInt8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

std::int64_t tensor_bytes(const Shape& shape, DType dtype) {
  return checked_bytes(shape, static_cast<std::int64_t>(size_of(dtype))).value_or(-1);
}

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                           DType::kInt64, DType::kUInt8, DType::kBool})
    if (name == safetensors_name(type)) return type;
  return std::nullopt;
}

std::vector<SafetensorsReader::Entry> lay_out(std::vector<TensorSpec> tensors) {
  std::vector<SafetensorsReader::Entry> entries;
  std::int64_t offset = 0;
  for (TensorSpec& spec : tensors) {
    const std::int64_t bytes = tensor_bytes(spec.shape, spec.dtype);
    if (bytes < 0)
      throw UsageError(
          str("safetensors: tensor \"", spec.name, "\" of shape ", spec.shape, " is too large."));
    SafetensorsReader::Entry entry;
    static_cast<TensorSpec&>(entry) = std::move(spec);
    entry.offset = offset;
    offset += bytes;
    entries.push_back(std::move(entry));
  }
  return entries;
}

SafetensorsHeader parse_safetensors_header(const std::string& path,
                                           std::string_view json,
                                           std::int64_t data_bytes) {
  const auto fail = [&](const std::string& why) {
    throw DataError(str(path, ": not a valid safetensors file (", why,
                        "). The file is damaged or of another kind."));
  };
  if (json.empty() || json.front() != '{') fail("the header does not start with '{'");
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler)) fail(handler.problem);

  auto& entries = handler.result.entries;
  const auto bytes_of = [&](const SafetensorsReader::Entry& entry) {
    const bool half = handler.result.halves.contains(entry.name);
    return tensor_bytes(entry.shape, half ? DType::kBFloat16 : entry.dtype);
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    const std::int64_t end = handler.ends[i];
    const auto named = [&] {
      return str("tensor \"", entry.name, "\" of shape ", entry.shape, " and type ",
                 safetensors_name(entry.dtype), " ");
    };
    const std::int64_t bytes = bytes_of(entry);
    if (bytes < 0) fail(named() + "is larger than 2^63 bytes");
    if (entry.offset > end || end > data_bytes)
      fail(str(named(), "claims bytes ", entry.offset, "..", end, " of ", data_bytes));
    if (end - entry.offset != bytes)
      fail(str(named(), "needs ", bytes, " bytes, but claims ", end - entry.offset));
  }
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.offset, bytes_of(a)) < std::pair(b.offset, bytes_of(b));
  });
  std::int64_t covered = 0;
  for (const auto& entry : entries) {
    if (entry.offset != covered)
      fail(str("tensor \"", entry.name, "\" starts at byte ", entry.offset, " where byte ", covered,
               " is expected: ", entry.offset < covered ? "tensors overlap" : "a gap"));
    covered += bytes_of(entry);
  }
  if (covered != data_bytes) fail(str("tensors cover ", covered, " of ", data_bytes, " bytes"));
  return std::move(handler.result);
}

std::string format_safetensors_header(const std::vector<SafetensorsReader::Entry>& entries,
                                      const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Names differ; to set them by name would look each up in a list.
  auto& fields = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& entry : entries) {
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (const std::int64_t n : entry.shape) shape.push_back(n);
    fields.emplace_back(
        entry.name, nlohmann::ordered_json{
                        {"dtype", safetensors_name(entry.dtype)},
                        {"shape", shape},
                        {"data_offsets",
                         {entry.offset, entry.offset + tensor_bytes(entry.shape, entry.dtype)}}});
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    throw UsageError(
        str("safetensors: a name or metadata text is not valid UTF-8 (", e.what(), ")."));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace tessera::io
