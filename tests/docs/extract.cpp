// extract PAGE FILE: writes the program that the code of a page makes.
#include <iostream>

#include "page.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    std::ofstream out(argv[2]);
    out << tessera::test::Page(argv[1]).program(argv[1]);
    return out ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "extract: " << error.what() << '\n';
    return 1;
  }
}
