//! Finds the cgroup controllers of this host: where they are, and in which version.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// A controller that enforces one of our limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory of the whole process tree.
    Memory,
    /// Processes and threads.
    Pids,
    Cpu,
}

impl Controller {
    pub const ALL: &[Self] = &[Self::Memory, Self::Pids, Self::Cpu];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// A directory in which a leaf for a controller can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cgroup v1 hierarchy, below this directory.
    V1(PathBuf),
    /// In the cgroup v2 hierarchy, below this directory, which delegates the controller.
    V2(PathBuf),
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    memory: Found,
    pids: Found,
    cpu: Found,
    freezer: Option<Place>,
}

/// A place, or why there is none.
#[derive(Clone, Debug)]
enum Found {
    At(Place),
    Missing(String),
}

impl Default for Found {
    fn default() -> Self {
        Self::Missing("the kernel has no such controller".to_owned())
    }
}

impl Host {
    /// Examines the mounted hierarchies and our own position in them.
    pub fn detect() -> Self {
        Self::detect_as(&own_cgroups())
    }

    fn detect_as(own: &str) -> Self {
        // Listing all mounts takes the kernel longer than everything else here, so the usual places are tried first.
        let usual = Self::from_hierarchies(&Hierarchy::usual(), own);
        if Controller::ALL.iter().all(|controller| usual.place(*controller).is_ok()) {
            return usual;
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self::from_text(&mounts, own)
    }

    fn from_text(mounts: &str, own: &str) -> Self {
        Self::from_hierarchies(&mounts.lines().filter_map(Hierarchy::parse).collect::<Vec<_>>(), own)
    }

    fn from_hierarchies(hierarchies: &[Hierarchy], own: &str) -> Self {
        let v2 = hierarchies.iter().find(|hierarchy| hierarchy.is_v2);
        let wanted: Vec<Controller> = Controller::ALL
            .iter()
            .copied()
            .filter(|controller| !hierarchies.iter().any(|hierarchy| hierarchy.is_v1_of(*controller)))
            .collect();
        // A process is in only one v2 cgroup, so all available controllers must share a place.
        let shared = v2.filter(|_| !wanted.is_empty()).and_then(|hierarchy| hierarchy.v2_place(&wanted, own));
        let find = |controller: Controller| {
            let name = controller.as_str();
            match (hierarchies.iter().find(|hierarchy| hierarchy.is_v1_of(controller)), v2, &shared) {
                (Some(hierarchy), _, _) => hierarchy.v1_place(controller, own),
                (None, None, _) => Found::Missing(format!("no cgroup hierarchy with the {name} controller is mounted")),
                (None, Some(hierarchy), _) if !hierarchy.has(name) => Found::Missing(format!(
                    "the cgroup v2 hierarchy has no {name} controller, and no v1 hierarchy does"
                )),
                (None, Some(_), Some((place, handed))) if handed.contains(&controller) => {
                    Found::At(Place::V2(place.clone()))
                }
                (None, Some(_), _) => {
                    Found::Missing(format!("no cgroup above ours delegates the {name} controller to us"))
                }
            }
        };
        Self {
            memory: find(Controller::Memory),
            pids: find(Controller::Pids),
            cpu: find(Controller::Cpu),
            freezer: None,
        }
    }

    /// Also finds a place to freeze processes. This is separate because it takes a while, and a sandbox of a single
    /// exec is never frozen.
    pub fn detect_with_freezer() -> Self {
        let own = own_cgroups();
        let mut host = Self::detect_as(&own);
        host.freezer = host.v2_place().cloned().or_else(|| find_freezer(&own));
        host
    }

    fn v2_place(&self) -> Option<&Place> {
        let mut places = Controller::ALL.iter().filter_map(|controller| self.place(*controller).ok());
        places.find(|place| matches!(place, Place::V2(_)))
    }

    /// Where a freezable leaf can be created, or why it can't.
    pub fn freezer(&self) -> Result<&Place, &str> {
        self.freezer.as_ref().ok_or("no cgroup hierarchy that can freeze processes is mounted and writable")
    }

    /// Where a leaf for this controller can be created, or why it can't.
    pub fn place(&self, controller: Controller) -> Result<&Place, &str> {
        let found = match controller {
            Controller::Memory => &self.memory,
            Controller::Pids => &self.pids,
            Controller::Cpu => &self.cpu,
        };
        match found {
            Found::At(place) => Ok(place),
            Found::Missing(why) => Err(why),
        }
    }
}

impl Place {
    /// The name shown to users.
    pub fn mechanism(&self) -> &'static str {
        match self {
            Self::V1(_) => "cgroup v1",
            Self::V2(_) => "cgroup v2",
        }
    }

    /// The directory in which leaves are created.
    pub fn directory(&self) -> &Path {
        match self {
            Self::V1(path) | Self::V2(path) => path,
        }
    }
}

/// One mounted hierarchy.
struct Hierarchy {
    mount_point: PathBuf,
    root: String,
    is_v2: bool,
    options: String,
}

impl Hierarchy {
    /// Hierarchies mounted at the usual places, recognised by the filesystem's magic number.
    fn usual() -> Vec<Self> {
        const V1: u64 = 0x0027_e0eb;
        const V2: u64 = 0x6367_7270;
        let at = |path: &str, wanted: u64| rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == wanted);
        let whole = |mount_point: String, is_v2: bool, options: &str| Self {
            mount_point: mount_point.into(),
            root: "/".to_owned(),
            is_v2,
            options: options.to_owned(),
        };
        if at("/sys/fs/cgroup", V2) {
            return vec![whole("/sys/fs/cgroup".to_owned(), true, "")];
        }
        let names = Controller::ALL.iter().map(|controller| controller.as_str());
        names
            .map(|name| (name, format!("/sys/fs/cgroup/{name}")))
            .filter(|(_, path)| at(path, V1))
            .map(|(name, path)| whole(path, false, name))
            .collect()
    }

    /// Parses a line of mountinfo: `id parent dev root mountpoint options … - type source superoptions`.
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let kind = back.next()?;
        let options = back.nth(1)?.to_owned();
        let mut front = front.split(' ').skip(3);
        let (root, mount_point) = (front.next()?.to_owned(), PathBuf::from(front.next()?));
        match kind {
            "cgroup" => Some(Self { mount_point, root, is_v2: false, options }),
            "cgroup2" => Some(Self { mount_point, root, is_v2: true, options }),
            _ => None,
        }
    }

    fn is_v1_of(&self, controller: Controller) -> bool {
        !self.is_v2 && self.options.split(',').any(|option| option == controller.as_str())
    }

    fn v1_place(&self, controller: Controller, own: &str) -> Found {
        let name = controller.as_str();
        let Some(own) = self.own_directory(controller, own) else {
            return Found::Missing(format!("our own cgroup is outside the mounted {name} hierarchy"));
        };
        match access(&own, Access::WRITE_OK) {
            Ok(()) => Found::At(Place::V1(own)),
            Err(_) => Found::Missing(format!("no child of our {name} cgroup can be created")),
        }
    }

    /// Our own directory in this hierarchy, as the mount shows it.
    fn own_directory(&self, controller: Controller, own: &str) -> Option<PathBuf> {
        let path = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let is_this = if self.is_v2 {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == controller.as_str())
            };
            is_this.then_some(path)
        })?;
        let inside = if self.root == "/" {
            path
        } else {
            path.strip_prefix(self.root.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'))?
        };
        Some(self.mount_point.join(inside.trim_start_matches('/')))
    }

    fn has(&self, name: &str) -> bool {
        std::fs::read_to_string(self.mount_point.join("cgroup.controllers"))
            .is_ok_and(|text| text.split_whitespace().any(|controller| controller == name))
    }

    /// A v2 cgroup that contains processes can't delegate controllers, so the leaf goes below an ancestor that already
    /// does: the nearest one that delegates everything wanted, so that limits above it still apply. If there is none,
    /// root may make the top of the hierarchy delegate controllers to a directory of ours; other users get the ancestor
    /// that delegates most.
    fn v2_place(&self, wanted: &[Controller], own: &str) -> Option<(PathBuf, Vec<Controller>)> {
        let own = self.own_directory(Controller::Memory, own)?;
        let mut best: Option<(PathBuf, Vec<Controller>)> = None;
        for directory in own.ancestors().take_while(|directory| directory.starts_with(&self.mount_point)) {
            if access(directory, Access::WRITE_OK).is_err() {
                continue;
            }
            let handed = handed_down(directory, wanted);
            if handed.len() > best.as_ref().map_or(0, |(_, handed)| handed.len()) {
                best = Some((directory.to_owned(), handed));
            }
        }
        let is_complete = best.as_ref().is_some_and(|(_, handed)| handed.len() == wanted.len());
        if !is_complete
            && rustix::process::geteuid().is_root()
            && let Some(made) = self.make_top(wanted)
        {
            return Some(made);
        }
        best
    }

    fn make_top(&self, wanted: &[Controller]) -> Option<(PathBuf, Vec<Controller>)> {
        let ours = self.mount_point.join("saggar");
        let enable = |directory: &Path, controller: &Controller| {
            // A controller that is missing or can't be delegated doesn't appear in the list below.
            let _ = std::fs::write(directory.join("cgroup.subtree_control"), format!("+{}", controller.as_str()));
        };
        wanted.iter().for_each(|controller| enable(&self.mount_point, controller));
        std::fs::create_dir_all(&ours).ok()?;
        wanted.iter().for_each(|controller| enable(&ours, controller));
        let handed = handed_down(&ours, wanted);
        (!handed.is_empty()).then_some((ours, handed))
    }
}

/// Our own cgroups, in the kernel's format.
fn own_cgroups() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// If the controllers are v1, a v2 hierarchy beside them can still freeze, and also counts CPU time. The v1 freezer is
/// the last choice.
fn find_freezer(own: &str) -> Option<Place> {
    const V1: u64 = 0x0027_e0eb;
    const V2: u64 = 0x6367_7270;
    let at = |path: &str, wanted: u64| rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == wanted);
    let own_path = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let is_this = if controller.is_empty() {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == controller)
            };
            is_this.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let usable = |mount: &str, magic: u64, controller: &str| {
        let directory = Path::new(mount).join(own_path(controller).filter(|_| at(mount, magic))?);
        access(&directory, Access::WRITE_OK).is_ok().then_some(directory)
    };
    usable("/sys/fs/cgroup/unified", V2, "")
        .map(Place::V2)
        .or_else(|| usable("/sys/fs/cgroup/freezer", V1, "freezer").map(Place::V1))
}

/// The wanted controllers that a cgroup delegates to its children.
fn handed_down(directory: &Path, wanted: &[Controller]) -> Vec<Controller> {
    let enabled = std::fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
    let has = |controller: &&Controller| enabled.split_whitespace().any(|name| name == controller.as_str());
    wanted.iter().filter(has).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /nowhere/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn each_controller_is_found_where_it_is() {
        let hierarchies: Vec<_> = MOUNTS.lines().filter_map(Hierarchy::parse).collect();
        assert_eq!(hierarchies.len(), 3);
        assert!(hierarchies[0].is_v1_of(Controller::Cpu) && !hierarchies[0].is_v1_of(Controller::Memory));
        let own = "5:memory:/docker/abc/job\n4:cpu,cpuacct:/\n0::/user.slice\n";
        let directory = |index: usize, controller| hierarchies[index].own_directory(controller, own);
        assert_eq!(directory(0, Controller::Cpu), Some(PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/")));
        assert_eq!(directory(1, Controller::Memory), Some(PathBuf::from("/sys/fs/cgroup/memory/job")));
        assert_eq!(directory(2, Controller::Pids), Some(PathBuf::from("/nowhere/unified/user.slice")));
    }

    #[test]
    fn a_cgroup_outside_the_mounted_subtree_is_not_used() {
        let hierarchies: Vec<_> = MOUNTS.lines().filter_map(Hierarchy::parse).collect();
        assert_eq!(hierarchies[1].own_directory(Controller::Memory, "5:memory:/docker/abcdef\n"), None);
    }

    /// As systemd lays out a user's session: the nearest cgroup delegates less.
    #[test]
    fn all_controllers_of_version_2_share_one_place() {
        let root = std::env::temp_dir().join(format!("saggar-cgroup-{}", std::process::id()));
        let own = root.join("user/app/job");
        std::fs::create_dir_all(&own).unwrap();
        for (directory, handed) in
            [("", ""), ("user", "cpu memory pids"), ("user/app", "memory pids"), ("user/app/job", "")]
        {
            std::fs::write(root.join(directory).join("cgroup.subtree_control"), handed).unwrap();
        }
        std::fs::write(root.join("cgroup.controllers"), "cpu memory pids io").unwrap();
        let mounts = format!("33 30 0:29 / {} rw - cgroup2 cgroup2 rw", root.display());
        let host = Host::from_text(&mounts, "0::/user/app/job\n");
        for controller in Controller::ALL {
            assert_eq!(host.place(*controller), Ok(&Place::V2(root.join("user"))), "{controller:?}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_missing_controller_says_why() {
        let host = Host::from_text(MOUNTS, "0::/\n");
        assert!(host.place(Controller::Pids).unwrap_err().contains("no pids controller"), "{host:?}");
    }
}
