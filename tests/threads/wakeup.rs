//! The wake-up of a client's own thread. No time passes: a sleep ends only if somebody wakes it.

use shuttle::sync::{Arc, Condvar, Mutex};

#[derive(Clone, Debug)]
pub(crate) struct WakeUp(Arc<(Mutex<bool>, Condvar)>);

impl WakeUp {
    pub(crate) fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(crate) fn unpark(&self) {
        let (is_woken, changed) = &*self.0;
        *is_woken.lock().expect("no thread panics with it") = true;
        changed.notify_one();
    }

    pub(crate) fn park(&self) {
        let (is_woken, changed) = &*self.0;
        let mut is_woken = is_woken.lock().expect("no thread panics with it");
        while !std::mem::take(&mut *is_woken) {
            is_woken = changed.wait(is_woken).expect("no thread panics with it");
        }
    }
}
