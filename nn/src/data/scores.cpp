#include <cmath>
#include <tessera/nn/data/scores.hpp>

namespace tessera::data {

void ErrorSums::add(double prediction, double truth) {
  const double error = prediction - truth;
  if (std::isnan(error)) return;
  ++count;
  squares += error * error;
  absolute += std::abs(error);
  bias += error;
}

ErrorSums& ErrorSums::operator+=(const ErrorSums& other) {
  count += other.count;
  squares += other.squares;
  absolute += other.absolute;
  bias += other.bias;
  return *this;
}

double ErrorSums::rmse() const { return std::sqrt(squares / static_cast<double>(count)); }
double ErrorSums::mae() const { return absolute / static_cast<double>(count); }
double ErrorSums::mean() const { return bias / static_cast<double>(count); }

void ReliefScores::add(double prediction, double truth) {
  all.add(prediction, truth);
  (truth > 0 ? land : ocean).add(prediction, truth);
}

ReliefScores& ReliefScores::operator+=(const ReliefScores& other) {
  all += other.all;
  land += other.land;
  ocean += other.ocean;
  return *this;
}

}  // namespace tessera::data
