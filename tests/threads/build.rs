//! Sets `cfg(threads)`, with which the kernel makes mistakes, and the wake-up has a model.

fn main() {
    println!("cargo::rustc-cfg=threads");
    println!("cargo::rerun-if-changed=build.rs");
}
