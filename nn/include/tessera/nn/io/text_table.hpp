#pragma once

#include <string>
#include <vector>

namespace tessera::io {

/// One line per row, columns as wide as their widest cell: the first `left` of them start at the
/// left, the others end at the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows, std::size_t left);

}  // namespace tessera::io
