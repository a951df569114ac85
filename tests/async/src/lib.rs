//! The pages of leasehold's guide whose examples need crates that leasehold must not depend on.

#[doc = include_str!("../../../src/guide/async_code.md")]
pub mod async_code {}
#[doc = include_str!("../../../src/guide/tracing.md")]
pub mod tracing {}
