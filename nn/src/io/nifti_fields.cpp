#include "io/nifti_fields.hpp"

#include "io/stored_type.hpp"

namespace tessera::io {

NiftiFields::NiftiFields(const std::string& path) : FieldReader(path), reader_(path) {
  const NiftiHeader& header = reader_.header();
  FieldVariable v;
  v.name = "volume";
  v.numeric = true;
  v.shape = header.shape;
  static constexpr const char* kNames[] = {"i", "j", "k", "time"};
  for (int d = header.shape.size() - 1; d >= 0; --d)
    v.dims.push_back(d < 4 ? kNames[d] : str("dim_", d));
  if (!header.description.empty()) v.attributes["long_name"] = header.description;
  v.attributes["spacing"] =
      std::vector<double>(header.spacing.begin(), header.spacing.end());  // along i, j, k
  // The reader scales by itself: integers stay what they are only without a scale.
  const auto type = parse_type_name(header.type);
  const bool integers =
      type && !is_floating(type->type) && type->type != StoredType::kUInt64 && !header.scaled();
  add(std::move(v), {.type = integers ? StoredType::kInt64 : StoredType::kFloat64});
}

void NiftiFields::read_raw(std::size_t, const Box& box, void* values) const {
  const DType type = variables()[0].type == StoredType::kInt64 ? DType::kInt64 : DType::kFloat64;
  const std::lock_guard lock(mutex_);
  reader_.read(box, View::dense(values, type, box.shape()));
}

}  // namespace tessera::io
