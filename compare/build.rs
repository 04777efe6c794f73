//! Compiles the glue of the peers written in C and links their libraries.

fn main() {
    println!("cargo:rerun-if-changed=src");
    let mut glue = cc::Build::new();
    glue.file("src/berkeley.c");
    if std::env::var_os("CARGO_FEATURE_ROCKSDB").is_some() {
        glue.file("src/rocks.c");
        println!("cargo:rustc-link-lib=rocksdb");
    }
    glue.warnings(true).compile("peers");
    println!("cargo:rustc-link-lib=db-5.3");
}
