#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace tessera::io {

/// The value of an attribute in a file of fields: a text or a list of numbers.
using Attribute = std::variant<std::string, std::vector<double>>;
using Attributes = std::map<std::string, Attribute>;

}  // namespace tessera::io
