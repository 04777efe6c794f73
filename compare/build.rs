//! Compiles the glue of the peers written in C and links their libraries.

fn main() {
    println!("cargo:rerun-if-changed=src");
    cc::Build::new().files(["src/berkeley.c", "src/rocks.c"]).warnings(true).compile("peers");
    println!("cargo:rustc-link-lib=rocksdb");
    println!("cargo:rustc-link-lib=db-5.3");
}
