#pragma once

namespace tessera::io {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;
inline constexpr int kGlyphAdvance = 6;

/// Whether the pixel (column, row) of the glyph of `c` is set; characters outside ASCII look like
/// '?'.
bool glyph_pixel(char c, int column, int row);

}  // namespace tessera::io
