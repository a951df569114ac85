//! The releases of an attempt as messages: behind its acquire, or on another connection.

use super::promise::Step;
use super::protocol::{Flaw, Protocol};
use super::state::{Phase, Progress, Release, Server, State};

impl Protocol {
    /// Calls `take` with each possible step of a client and a server that concerns the releases of
    /// an attempt or the answer to its acquire.
    pub(super) fn each_of_releases(
        &self,
        state: &State,
        server: usize,
        id: usize,
        take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
    ) {
        let now = &state.servers[server];
        let has_run = now.acquire[id] != Progress::Sent;
        if now.acquire[id] != Progress::No && !now.is_answered[id] && !now.is_cut[id] {
            if has_run {
                take(Step::ReadsGrant { server, id }, &|next| {
                    next.servers[server].is_answered[id] = true;
                });
            }
            take(Step::Cuts { server, id }, &|next| {
                let server = &mut next.servers[server];
                server.is_cut[id] = true;
                if server.release[id] == Release::Behind {
                    server.release[id] = Release::NotSent;
                }
            });
        }
        let mut becomes = |step, release| {
            take(step, &|next| next.servers[server].release[id] = release);
        };
        let repeats = Step::RepeatsRelease { server, id };
        match now.release[id] {
            Release::NotSent if state.attempts[id].phase == Phase::Over => {
                let sends = |is_behind| Step::SendsRelease {
                    server,
                    id,
                    is_behind,
                };
                if !now.is_cut[id] {
                    becomes(sends(true), Release::Behind);
                }
                let is_ordered = now.is_answered[id];
                becomes(sends(false), Release::Apart { is_ordered });
            }
            Release::Behind if has_run => runs(now, server, id, true, take),
            Release::Apart { is_ordered } => {
                becomes(repeats, Release::NotSent);
                runs(now, server, id, is_ordered, take);
            }
            Release::FoundNothing { is_ordered } => {
                let is_answered = now.is_answered[id] && self.has(Flaw::ReleaseJudgedWhenAnswered);
                if is_ordered || is_answered || self.has(Flaw::AnyAnswerEndsRelease) {
                    becomes(Step::EndsRelease { server, id }, Release::Over);
                }
                becomes(repeats, Release::NotSent);
            }
            Release::NotSent | Release::Behind | Release::Over => {}
        }
    }
}

/// The server runs a release.
fn runs(
    now: &Server,
    server: usize,
    id: usize,
    is_ordered: bool,
    take: &mut impl FnMut(Step, &dyn Fn(&mut State)),
) {
    if now.holder == Some(id) {
        // An acquire runs once, so no key is left to delete, even if the answer is lost.
        take(Step::Deletes { server, id }, &|next| {
            next.servers[server].holder = None;
            next.servers[server].release[id] = Release::Over;
        });
    } else {
        take(Step::FindsNothing { server, id }, &|next| {
            next.servers[server].release[id] = Release::FoundNothing { is_ordered };
        });
    }
}

impl Server {
    /// Drops the state of an attempt that is over, as far as it has no further effect.
    pub(super) fn forget_what_is_gone(&mut self, id: usize) {
        let may_be_here = self.acquire[id] == Progress::Sent || self.holder == Some(id);
        if !may_be_here {
            self.release[id] = Release::Over;
        }
        if self.release[id] == Release::Over {
            self.is_answered[id] = false;
            self.is_cut[id] = false;
            if self.acquire[id] == Progress::Yes {
                self.acquire[id] = Progress::No;
            }
        }
    }
}
