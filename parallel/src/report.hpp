#pragma once

namespace tessera::parallel {

/// Waits, for at most 2 seconds, until the launcher has read what was written to a pipe: it drops
/// what is left when a job aborts. Does not allocate.
void wait_until_read(int descriptor);

}  // namespace tessera::parallel
