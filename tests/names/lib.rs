//! Host names that a test answers itself: this stands in for the C function `getaddrinfo` in the
//! programs that link it. A package, because that needs `unsafe`.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::net::Ipv4Addr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use libc::addrinfo;

/// What the look-up of a name returns.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These addresses, in this order.
    Addresses(Vec<Ipv4Addr>),
    /// A failure that may pass.
    Failure,
    /// Nothing, until the answer is another one.
    Silence,
}

static ANSWERS: Mutex<Option<HashMap<String, Answer>>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

type GetAddrInfo = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const addrinfo,
    *mut *mut addrinfo,
) -> c_int;

/// A name of this process. When it is dropped, its look-ups fail.
#[derive(Debug)]
pub struct Name(&'static str);

impl Name {
    /// Answers look-ups of `host` from now on.
    pub fn new(host: &'static str, answer: Answer) -> Self {
        // The linker takes the function below only from an object that something refers to.
        std::hint::black_box(getaddrinfo as GetAddrInfo);
        let name = Self(host);
        name.set(answer);
        name
    }

    /// Changes the answer.
    pub fn set(&self, answer: Answer) {
        let mut answers = answers();
        answers
            .get_or_insert_with(HashMap::new)
            .insert(self.0.to_owned(), answer);
        CHANGED.notify_all();
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.set(Answer::Failure);
    }
}

fn answers() -> MutexGuard<'static, Option<HashMap<String, Answer>>> {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the answer for a name, once there is one; `None` for a name that no test has set.
fn answer_for(host: &str) -> Option<Answer> {
    let mut answers = answers();
    loop {
        match answers.as_ref()?.get(host)? {
            Answer::Silence => {
                answers = CHANGED
                    .wait(answers)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            answer => return Some(answer.clone()),
        }
    }
}

/// The function of the C library that this one stands in for.
fn real() -> GetAddrInfo {
    // SAFETY: the name is a C string, and the symbol that it finds has this type.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, c"getaddrinfo".as_ptr());
        assert!(!found.is_null(), "the C library has getaddrinfo");
        std::mem::transmute::<*mut libc::c_void, GetAddrInfo>(found)
    }
}

/// Looks a name up, like the function of the C library.
///
/// # Safety
///
/// As for the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    let host = if node.is_null() {
        None
    } else {
        // SAFETY: a node that is not null is a C string.
        unsafe { CStr::from_ptr(node) }.to_str().ok()
    };
    let Some(answer) = host.and_then(answer_for) else {
        // SAFETY: the arguments are those of this call.
        return unsafe { real()(node, service, hints, found) };
    };
    let Answer::Addresses(addresses) = answer else {
        return libc::EAI_AGAIN;
    };
    let mut last = found;
    for address in addresses {
        let text = std::ffi::CString::new(address.to_string()).expect("it contains no zero");
        // SAFETY: `last` is where the C library expects its result, or the end of the list that it
        // returned before. glibc frees each element of a list by itself.
        unsafe {
            let code = real()(text.as_ptr(), service, hints, last);
            if code != 0 {
                return code;
            }
            while !(*last).is_null() {
                last = &raw mut (**last).ai_next;
            }
        }
    }
    0
}
