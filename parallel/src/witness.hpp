#pragma once

namespace tessera::parallel {
struct Record;
}

/// A second process beside each rank that outlives it: a rank that is killed cannot report, and the
/// launcher would end the job without a word about where. The witness shares one page with its rank
/// (what it communicates at the moment), sleeps until it has died, and then reports for it and has
/// the launcher end the job. It exists only under launchers of the Hydra kind (PMI_FD), whose
/// connection it holds open so that it comes before the launcher.
namespace tessera::parallel::witness {

/// Before MPI starts; does nothing without such a launcher. Until set_running the witness also ends
/// a job whose start takes longer than TESSERA_TIMEOUT: then a process of the job is missing.
void start();
/// MPI has started; the rank is known (core/mesh.hpp).
void set_running();
/// MPI is about to be finalised; the same limit of time as at the start.
void set_ending();
/// MPI is finalised. The witness stays for the process that is stopped and so never exits.
void stop();

/// The call that this rank has started, or waits for; null: it waits no longer.
void note_call(const Record& call);
void note_wait(const Record* call);
/// This rank reports for the job, or knows who does: no witness needs to.
void claim_report();
void leave_report_to_others();

}  // namespace tessera::parallel::witness
