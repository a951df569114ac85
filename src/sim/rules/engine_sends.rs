//! Rules of a client whose engine sends the commands of calls and the releases.

use std::sync::Arc;

use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::call::Step;
use crate::kernel::command::What;
use crate::kernel::effects::Effects;

use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::OperationCell;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::Outcome;
use crate::protocol::answer::{Answer, Undone};
use crate::runtime::commands::{Commands, End, ForServer};
use crate::sim::rules::{ONE_SERVER, at, call, kernel, mutex};
use crate::token::FencingToken;

/// A client of one server, whose engine sends.
struct Client {
    kernel: Kernel,
    engine: Commands,
}

impl Client {
    fn new() -> Self {
        let mut kernel = kernel();
        kernel.shared.limits.engine_sends = true;
        Self {
            kernel,
            engine: Commands::default(),
        }
    }

    fn due(&mut self, ms: u64) -> Vec<ForServer> {
        let fx = &mut Effects::default();
        self.engine.due(&self.kernel, at(ms), &ONE_SERVER, fx)
    }

    /// Returns the only command that is due.
    fn one_due(&mut self, ms: u64) -> ForServer {
        let mut due = self.due(ms);
        assert_eq!(due.len(), 1, "{due:?}");
        due.remove(0)
    }

    fn end(&mut self, out: &ForServer, end: Result<Answer, Fault>, ms: u64) {
        let fx = &mut Effects::default();
        let ended = End {
            no: out.no,
            end,
            sent: at(ms),
            link: 0,
        };
        self.engine
            .ended(&self.kernel, ended, at(ms), &ONE_SERVER, fx);
    }

    /// Acquires the lock, and begins to release it.
    fn releasing(&mut self) -> (Arc<HeldLease>, Arc<OperationCell>, ForServer) {
        let mut call = call(&self.kernel, &mutex(), false, at(0));
        let fx = &mut Effects::default();
        assert!(matches!(call.begin(&self.kernel, at(0), fx), Step::Park(_)));
        let out = self.one_due(0);
        assert!(matches!(out.command.what, What::Acquire { .. }));
        self.end(&out, Ok(Answer::Granted(FencingToken::new(7))), 1);
        let Step::Done(Outcome::Lease(lease, token)) = call.woken(&self.kernel, at(1), fx) else {
            panic!("the call was granted the lock");
        };
        let Unlock::Wait(cell) = self.kernel.begin_unlock(&lease, token, false, at(2), fx) else {
            panic!("the engine sends the release");
        };
        let out = self.one_due(2);
        assert!(matches!(out.command.what, What::Leave { .. }));
        assert!(!self.engine.is_idle(), "its holder waits");
        (lease, cell, out)
    }
}

#[test]
fn engine_sends_the_commands_of_a_call_and_its_release() {
    let mut client = Client::new();
    let (lease, cell, release) = client.releasing();
    client.end(&release, Ok(Answer::Ours), 3);
    assert!(matches!(*cell.result.lock(), Some(Ok(()))));
    assert!(!lease.is_open());
    assert!(client.kernel.shared.pending.lock().is_empty());
    assert!(client.engine.is_idle());
}

#[test]
fn release_of_the_engine_without_a_reply_is_repeated() {
    let mut client = Client::new();
    let (_, cell, release) = client.releasing();
    client.end(&release, Err(Fault::Unknown(Cause::text("reset"))), 3);
    let result = cell.result.lock().take();
    assert!(
        matches!(result, Some(Err(Failure::Unreachable { .. }))),
        "{result:?}"
    );
    let undo = client.one_due(3);
    assert!(matches!(&undo.command.what, What::Undo { ids } if ids.len() == 1));
    let undone = Undone {
        removed: vec![0],
        other: None,
    };
    client.end(&undo, Ok(Answer::Undone(undone)), 4);
    assert!(client.kernel.shared.pending.lock().is_empty());
}
