#pragma once

#include <string>
#include <tessera/nn/io/plot.hpp>
#include <vector>

namespace tessera::app {

/// One plot of a picture.
struct Panel {
  std::vector<io::PlotSeries> series;
  io::PlotOptions options;
};

/// An empty plot over numbers of ranks.
Panel panel_by_ranks(const char* title, const char* unit, bool log_y);

/// The panels two by two, of equal size, as an SVG document.
std::string svg_of(const std::vector<Panel>& panels);

/// The same as DIR/NAME.svg and DIR/NAME.png; makes the directory.
void save_panels(const std::vector<Panel>& panels, const std::string& dir, const std::string& name);

}  // namespace tessera::app
