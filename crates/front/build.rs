//! How the front is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Every start moves the binary to a random place, which means to correct each address in it. Packed, the list of these is a few KiB
    // instead of hundreds, all of which `saggar run` would read before it does anything.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
