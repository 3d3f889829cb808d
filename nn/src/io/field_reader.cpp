#include <algorithm>
#include <cmath>
#include <tessera/nn/io/field_reader.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <utility>

#include "io/blocks.hpp"
#include "io/convert.hpp"
#include "io/decoding.hpp"
#include "io/stored_type.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kBlockPoints = 1 << 18;  // staged as stored: 2 MiB at most

/// Turns rows of stored values into rows of a view.
class RowWriter {
 public:
  RowWriter(StoredType type, const Decoding* decoding, const View& out, const ReadOptions& options)
      : type_(type), decoding_(decoding), out_(out), options_(options) {}

  /// `stride` counts stored values.
  void write(const Index& start, const std::byte* from, std::int64_t stride, std::int64_t count) {
    values_.resize(static_cast<std::size_t>(count));
    load_doubles(type_, from, stride, count, values_.data());
    valid_.assign(values_.size(), 1);
    bool missing = false;
    for (std::size_t j = 0; j < values_.size(); ++j) {
      if (decoding_ ? decoding_->decode(values_[j]) : !std::isnan(values_[j])) continue;
      values_[j] = options_.missing;
      valid_[j] = 0;
      missing = true;
    }
    if (is_floating(out_.dtype)) {
      store_row(out_, start, values_.data(), DType::kFloat64, count);
    } else {
      integers_.resize(values_.size());
      load_integers(type_, from, stride, count, integers_.data());
      if (missing) {
        // Only what both types hold exactly.
        if (!(std::abs(options_.missing) <= 9007199254740992.0) ||
            options_.missing != std::floor(options_.missing))
          throw DataError(str("read: a point is missing, and ", options_.missing,
                              " has no place among integers. Say what stands for missing points, "
                              "or read floating values."));
        for (std::size_t j = 0; j < values_.size(); ++j)
          if (valid_[j] == 0) integers_[j] = static_cast<std::int64_t>(options_.missing);
      }
      store_row(out_, start, integers_.data(), DType::kInt64, count);
    }
    if (options_.mask.data) store_row(options_.mask, start, valid_.data(), DType::kUInt8, count);
  }

 private:
  StoredType type_;
  const Decoding* decoding_;
  const View& out_;
  const ReadOptions& options_;
  std::vector<double> values_;
  std::vector<std::int64_t> integers_;
  std::vector<std::uint8_t> valid_;
};

/// Calls f with the first index of each row of a box.
template <class F>
void for_each_row(const Box& box, F&& f) {
  Box starts = box;
  const int last = box.dims() - 1;
  if (last >= 0) starts.set(last, {box.lo[last], box.lo[last] + 1});
  for_each_index(starts, f);
}

}  // namespace

FieldReader::~FieldReader() = default;

void FieldReader::add(FieldVariable variable, Storage storage) {
  variable.type = storage.type;
  variables_.push_back(std::move(variable));
  storages_.push_back(std::move(storage));
}

bool FieldReader::contains(std::string_view variable) const {
  return std::any_of(variables_.begin(), variables_.end(),
                     [&](const FieldVariable& v) { return v.name == variable; });
}

const FieldVariable& FieldReader::variable(std::string_view name) const {
  for (const FieldVariable& v : variables_)
    if (v.name == name) return v;
  constexpr std::size_t kListed = 50;
  std::string list;
  std::vector<std::string> names;
  for (const FieldVariable& v : variables_) {
    if (names.size() < kListed) list += str(list.empty() ? "" : ", ", v.name);
    names.push_back(v.name);
  }
  if (names.size() > kListed) list += str(" and ", names.size() - kListed, " more");
  throw DataError(str(path(), ": holds no variable \"", name, "\" (it has: ", list, ").",
                      did_you_mean(name, names)));
}

const FieldVariable& FieldReader::variable_or_only(std::string_view name, int least_dims) const {
  if (!name.empty()) return variable(name);
  const FieldVariable* found = nullptr;
  std::string names;
  for (const FieldVariable& v : variables_) {
    if (!v.numeric || v.shape.size() < least_dims) continue;
    names += str(found ? ", " : "", v.name);
    if (!found) found = &v;
  }
  if (!found)
    throw DataError(str(path(), ": holds no variable with at least ",
                        least_dims == 2 ? std::string("two") : std::to_string(least_dims),
                        " dimensions."));
  if (names != found->name)
    throw UsageError(str(path(), ": holds several variables (", names, "). Name one of them."));
  return *found;
}

std::vector<double> FieldReader::coordinates(const std::string& dimension) const {
  if (!contains(dimension)) return {};
  const FieldVariable& v = variable(dimension);
  if (!v.numeric || v.dims != std::vector<std::string>{dimension}) return {};
  std::vector<double> values(static_cast<std::size_t>(v.shape[0]));
  read(dimension, Box::whole(v.shape), View::dense(values.data(), DType::kFloat64, v.shape));
  return values;
}

void FieldReader::read(std::string_view name,
                       const Box& box,
                       const View& out,
                       const ReadOptions& options) const {
  const FieldVariable& v = variable(name);
  const auto index = static_cast<std::size_t>(&v - variables_.data());
  const Storage& storage = storages_[index];
  const auto where = [&] { return str("read: variable \"", name, "\" of ", path(), ": "); };
  if (!v.numeric)
    throw DataError(str(where(), "holds no numbers, or has more than ", kMaxDims, " dimensions."));
  const int dims = v.shape.size();
  const Dims step = options.step.empty() ? Dims::filled(dims, 1) : options.step;
  if (box.dims() != dims || !Box::whole(v.shape).contains(box))
    throw ShapeError(str(where(), "box ", box.str(), " does not lie in shape ", v.shape, "."));
  if (step.size() != dims ||
      std::any_of(step.begin(), step.end(), [](std::int64_t s) { return s < 1; }))
    throw ShapeError(str(where(), "step ", step, " for ", dims,
                         " dimensions. Give one positive step for each."));
  Box result = box;  // in steps from box.lo
  for (int d = 0; d < dims; ++d) result.set(d, {0, (box[d].size() + step[d] - 1) / step[d]});
  check_view("read", out, result.shape());
  if (!is_floating(out.dtype) &&
      (is_floating(v.type) || (storage.decoding && storage.decoding->packed())))
    throw DTypeError(str(where(), is_floating(v.type) ? io::name(v.type) : "packed",
                         " values do not convert to ", tessera::name(out.dtype),
                         " (fractions would be lost). Use a floating element type."));
  if (options.mask.data) {
    check_view("read: mask", options.mask, result.shape());
    if (options.mask.dtype != DType::kUInt8 && options.mask.dtype != DType::kBool)
      throw DTypeError(str(where(), "the mask has element type ", tessera::name(options.mask.dtype),
                           ". Use u8 or bool."));
  }
  if (result.empty()) return;

  const int last = dims - 1;
  const std::int64_t last_step = dims > 0 ? step[last] : 1;
  const std::int64_t element = size_of(v.type);
  RowWriter rows(v.type, storage.decoding.get(), out, options);
  std::vector<std::byte> raw;
  // A part (in steps from box.lo) with step 1 in all but its last dimension, or one point there.
  const auto read_part = [&](const Box& part) {
    Box stored = part;
    for (int d = 0; d < dims; ++d)
      stored.set(d, {box.lo[d] + part.lo[d] * step[d], box.lo[d] + (part.hi[d] - 1) * step[d] + 1});
    raw.resize(static_cast<std::size_t>(stored.volume() * element));
    read_raw(index, stored, raw.data());
    const std::byte* from = raw.data();
    const std::int64_t row_bytes = (dims > 0 ? stored[last].size() : 1) * element;
    for_each_row(part, [&](const Index& start) {
      rows.write(start, from, last_step, dims > 0 ? part[last].size() : 1);
      from += row_bytes;
    });
  };

  int single = 0;  // dimensions before this one go index by index: libraries are slow at strides
  for (int d = 0; d < last; ++d)
    if (step[d] > 1) single = d + 1;
  if (single == 0 && last_step == 1) {
    for_each_part(storage, box, [&](const Box& stored) {
      Box part = stored;
      for (int d = 0; d < dims; ++d)
        part.set(d, {stored.lo[d] - box.lo[d], stored.hi[d] - box.lo[d]});
      read_part(part);
    });
    return;
  }
  for_each_block(result, std::max<std::int64_t>(1, kBlockPoints / last_step),
                 [&](const Box& block) {
                   Box starts = block;
                   for (int d = single; d < dims; ++d) starts.set(d, {0, 1});
                   for_each_index(starts, [&](const Index& i) {
                     Box part = block;
                     for (int d = 0; d < single; ++d) part.set(d, {i[d], i[d] + 1});
                     read_part(part);
                   });
                 });
}

void FieldReader::for_each_part(const Storage& storage,
                                const Box& box,
                                const std::function<void(const Box&)>& f) {
  if (!storage.chunk.empty()) {
    // Whole chunks, so that none is unpacked twice; but no more than 16 blocks at once.
    for_each_chunk_block(box, storage.chunk, kBlockPoints,
                         [&](const Box& part) { for_each_block(part, 16 * kBlockPoints, f); });
  } else if (storage.column_major) {
    for_each_block(reversed(box), kBlockPoints, [&](const Box& part) { f(reversed(part)); });
  } else {
    for_each_block(box, kBlockPoints, f);
  }
}

Tensor FieldReader::read(std::string_view variable, const Layout& layout, DType dtype) const {
  const FieldVariable& v = this->variable(variable);
  if (layout.partial_axes() != 0)
    throw LayoutError(str("read: cannot read \"", variable, "\" into ", layout.str(),
                          " (a Partial value has no parts in a file). Read with layout.dual()."));
  if (v.shape != layout.shape())
    throw ShapeError(str("read: \"", variable, "\" has shape ", v.shape, " in ", path(), ", but ",
                         layout.shape(), " is wanted."));
  Tensor tensor = Tensor::empty(layout, dtype);
  if (!tensor.local_box().empty()) read(variable, tensor.local_box(), tensor.mutable_local());
  return tensor;
}

Tensor FieldReader::read(const std::vector<std::string>& variables,
                         const Layout& layout,
                         DType dtype) const {
  if (layout.partial_axes() != 0)
    throw LayoutError(str("read: cannot read variables into ", layout.str(),
                          " (a Partial value has no parts in a file). Read with layout.dual()."));
  for (const std::string& name : variables) {
    Shape shape = variable(name).shape;
    shape.push_back(std::ssize(variables));
    if (shape != layout.shape())
      throw ShapeError(str("read: ", variables.size(), " variables like \"", name, "\" of ", path(),
                           " have shape ", shape, " as channels, but ", layout.shape(),
                           " is wanted."));
  }
  Tensor tensor = Tensor::empty(layout, dtype);
  const Box& own = tensor.local_box();
  if (own.empty()) return tensor;
  const int channels = own.dims() - 1;
  Box box;
  for (int d = 0; d < channels; ++d) {
    box.lo.push_back(own.lo[d]);
    box.hi.push_back(own.hi[d]);
  }
  const View local = tensor.mutable_local();
  for (std::int64_t c = own.lo[channels]; c < own.hi[channels]; ++c) {
    View view = {local.as<std::byte>() + (c - own.lo[channels]) * local.strides[channels] *
                                             static_cast<std::int64_t>(size_of(local.dtype)),
                 local.dtype,
                 box.shape(),
                 {},
                 local.device};
    for (int d = 0; d < channels; ++d) view.strides.push_back(local.strides[d]);
    read(variables[static_cast<std::size_t>(c)], box, view);
  }
  return tensor;
}

}  // namespace tessera::io
