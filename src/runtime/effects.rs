//! Carries out what the kernel wants done.

use crate::error::Error;
use crate::kernel::Effects;
use crate::logging;
use crate::runtime::state::Runtime;

impl Runtime {
    /// Carries out effects on a thread of the program.
    ///
    /// # Errors
    ///
    /// That of a thread which cannot be started and which a waiting call needs.
    pub(crate) fn carry_out(&self, fx: Effects) -> Result<(), Error> {
        for cell in fx.wake {
            cell.parker.unpark();
        }
        for cell in fx.operations {
            cell.parker.unpark();
        }
        if fx.engine_by.is_some() {
            self.engine.wake();
        }
        for (name, change) in fx.unlisten {
            self.unlisten(&name, change);
        }
        let mut result = Ok(());
        for (lock, change) in fx.listen {
            result = result.and(self.listen(&lock, change));
        }
        result
    }

    /// Carries out effects on a thread of the client.
    pub(crate) fn carry_out_here(&self, fx: Effects) {
        if let Err(error) = self.carry_out(fx) {
            logging::debug!("cannot listen to releases: {error}");
        }
    }
}
