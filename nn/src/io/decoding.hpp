#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::io {

/// How stored values of one variable become numbers or missing points.
struct Decoding {
  std::vector<double> missing;  ///< as stored
  double raw_min = -INFINITY, raw_max = INFINITY;
  double min = -INFINITY, max = INFINITY;  ///< after unpacking
  double scale = 1.0, offset = 0.0;
  double wrap = 0.0;  ///< added to negative stored values (_Unsigned)

  bool packed() const { return scale != 1.0 || offset != 0.0 || wrap != 0.0; }
  /// Unpacks in place; false: missing.
  bool decode(double& value) const {
    if (std::isnan(value)) return false;
    if (value < 0) value += wrap;
    for (const double m : missing)
      if (value == m) return false;
    if (value < raw_min || value > raw_max) return false;
    value = value * scale + offset;
    return value >= min && value <= max;
  }
};

/// The numbers of an attribute; null: it is absent, a text, or an empty list.
const std::vector<double>* numbers(const Attributes& attributes, const char* name);

/// What the attributes of a variable say (CF conventions 2.5.1, 8.1); null: nothing. `default_fill`
/// counts where no `_FillValue` is given; `floating` tells whether an attribute is stored as a
/// floating type.
std::shared_ptr<const Decoding> make_decoding(StoredType type,
                                              const Attributes& attributes,
                                              const std::function<bool(const char*)>& floating,
                                              std::optional<double> default_fill = std::nullopt);

}  // namespace tessera::io
