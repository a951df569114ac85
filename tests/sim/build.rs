//! Sets `cfg(sim)`, with which the kernel's files have their simulation.

fn main() {
    println!("cargo::rustc-cfg=sim");
    println!("cargo::rerun-if-changed=build.rs");
}
