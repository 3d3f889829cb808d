#pragma once

#include <string>
#include <vector>

namespace tessera::app {

struct ReportOptions {
  std::vector<std::string> files;
  std::string out = ".";
};

/// Prints the table of all series and draws scaling.png, scaling.svg and scaling.html (one page
/// that needs no other file). Returns the exit code.
int bench_report(const ReportOptions& options);

}  // namespace tessera::app
