//! Looks for credentials that images, hosts and their users keep in files.

use std::fs::File;

use crate::Attempt;
use crate::out::Out;

pub const ATTEMPTS: &[Attempt] = &[("find-credentials", find)];

const HOMES: [&str; 3] = ["/root", "/home/user", "/home/ubuntu"];
const IN_HOMES: [&str; 11] = [
    ".netrc",
    ".git-credentials",
    ".docker/config.json",
    ".aws/credentials",
    ".config/gcloud/application_default_credentials.json",
    ".azure/msal_token_cache.json",
    ".kube/config",
    ".npmrc",
    ".pypirc",
    ".ssh/id_rsa",
    ".ssh/id_ed25519",
];
const ELSEWHERE: [&str; 6] = [
    "/var/lib/cloud/instance/user-data.txt",
    "/run/cloud-init/instance-data-sensitive.json",
    "/run/secrets/kubernetes.io/serviceaccount/token",
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
    "/var/lib/saggar/signing.key",
    "/etc/saggar/secrets.key",
];

fn find(out: &Out, _: &[String]) {
    for home in HOMES {
        for name in IN_HOMES {
            let path = format!("{home}/{name}");
            out.tried(&path, File::open(&path));
        }
    }
    for path in ELSEWHERE {
        out.tried(path, File::open(path));
    }
}
