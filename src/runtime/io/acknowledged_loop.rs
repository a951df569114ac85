//! The loop of a thread for renewals that replicas must acknowledge.

use crossbeam_channel::Receiver;

use crate::lease::releases::Releases;
use crate::logging::contain;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::io::job::{IoJob, forward_moved};
use crate::runtime::io::renewal::settle_renewal;
use crate::runtime::io::renewal_round::RenewalPart;
use crate::runtime::io::writer::{Writer, writes};
use crate::runtime::state::Runtime;

pub(in crate::runtime) fn run(
    runtime: &Runtime,
    endpoint: &Endpoint,
    parts: &Receiver<RenewalPart>,
) {
    let mut writer = Writer::default();
    while let Ok(first) = parts.recv() {
        let mut jobs = vec![IoJob::Renew(first)];
        jobs.extend(parts.try_iter().map(IoJob::Renew));
        contain(|| {
            // This thread has no releases to pass on.
            forward_moved(runtime, endpoint, &mut Releases::default(), &mut jobs);
            for next in writes(jobs) {
                writer.write(runtime, endpoint, next, |job, sent, answer| {
                    if let IoJob::Renew(part) = job {
                        settle_renewal(runtime, endpoint, part, sent, answer);
                    }
                });
            }
        });
    }
}
