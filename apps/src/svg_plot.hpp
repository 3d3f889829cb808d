#pragma once

#include <string>
#include <tessera/nn/io/plot.hpp>
#include <vector>

namespace tessera::app {

/// `text` for HTML and SVG.
std::string escaped(const std::string& text);

/// One plot as an SVG group at (x, y), drawn like io::draw_plot; ticks of x are the values that
/// occur.
std::string svg_plot(const std::vector<io::PlotSeries>& series,
                     const io::PlotOptions& options,
                     int x,
                     int y);

}  // namespace tessera::app
