//! `std::sync` for a fleet.
