//! How the front is linked.

/// What the standard library wants of an unwinder.
const UNWINDER: [&str; 7] = [
    "_Unwind_GetIPInfo",
    "_Unwind_GetLanguageSpecificData",
    "_Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase",
    "_Unwind_Resume",
    "_Unwind_SetGR",
    "_Unwind_SetIP",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Every start moves the binary to a random place, which means to correct each address in it. Packed, the list of these is a few KiB
    // instead of hundreds, all of which `saggar run` would read before it does anything.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Only where a panic aborts. Cargo doesn't tell; of our profiles only the front's, whose panics do, has this level.
    if std::env::var_os("OPT_LEVEL").is_some_and(|level| level == "z") {
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("no-unwind.ld");
        println!("cargo:rerun-if-changed={}", script.display());
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
        println!("cargo:rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        // The standard library's code refers to these. Without tables they could only fail, so the unwinder stays out.
        for name in UNWINDER {
            println!("cargo:rustc-link-arg-bins=-Wl,--defsym={name}=abort");
        }
    }
}
