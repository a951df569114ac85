//! Draws the sequence diagrams in `docs`.
//!
//! The drawings depend only on `sequence.rs`. `cargo bench --bench diagrams` overwrites them.

mod sequence;

use std::fs;
use std::path::Path;

fn main() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for diagram in sequence::ALL {
        fs::write(docs.join(diagram.file), diagram.svg()).expect("the tree can be written");
    }
}
