#pragma once

namespace tessera {

/// Whether somebody reads the results of every call as soon as it has run: an observer, the check
/// for numbers that are none.
bool calls_are_watched();

}  // namespace tessera
