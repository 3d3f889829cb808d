#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace tessera::test {

/// Rank and number of ranks as the launcher says them; 0 of 1 without a launcher. Usable before MPI
/// starts.
int launch_rank();
int launch_size();

/// Puts `[rank r] ` before each line written to a stream, for as long as this object lives.
class LinePrefix : public std::streambuf {
 public:
  LinePrefix(std::ostream& stream, int rank);
  ~LinePrefix() override;
  LinePrefix(const LinePrefix&) = delete;
  LinePrefix& operator=(const LinePrefix&) = delete;

 protected:
  int overflow(int c) override;
  int sync() override;

 private:
  void write_line();

  std::ostream& stream_;
  std::streambuf* target_;
  std::string prefix_;
  std::string line_;
};

}  // namespace tessera::test
