#include "support/ranks.hpp"

#include <cstdlib>

#include "tessera/core/error.hpp"

namespace tessera::test {

namespace {

int number_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

}  // namespace

// MPICH's launcher sets these for every process that it starts.
int launch_rank() { return number_from_environment("PMI_RANK", 0); }
int launch_size() { return number_from_environment("PMI_SIZE", 1); }

LinePrefix::LinePrefix(std::ostream& stream, int rank)
    : stream_(stream), target_(stream.rdbuf(this)), prefix_(str("[rank ", rank, "] ")) {}

LinePrefix::~LinePrefix() {
  if (!line_.empty()) write_line();
  stream_.rdbuf(target_);
}

int LinePrefix::overflow(int c) {
  if (c == traits_type::eof()) return traits_type::not_eof(c);
  line_.push_back(traits_type::to_char_type(c));
  if (line_.back() == '\n') write_line();
  return c;
}

// One write per line keeps the lines of several ranks apart.
void LinePrefix::write_line() {
  if (line_.back() != '\n') line_ += '\n';
  const std::string text = prefix_ + line_;
  line_.clear();
  target_->sputn(text.data(), static_cast<std::streamsize>(text.size()));
  target_->pubsync();
}

int LinePrefix::sync() { return 0; }

}  // namespace tessera::test
