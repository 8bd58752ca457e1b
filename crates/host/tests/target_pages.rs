//! Each target has its page.

use std::fs;
use std::path::Path;

use blockyard_host::table::targets;

#[test]
fn each_target_has_a_page_and_a_row_in_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/targets");
    let list = fs::read_to_string(folder.join("README.md")).unwrap();
    for target in targets() {
        let name = target.name;
        let page = fs::read_to_string(folder.join(format!("{name}.md"))).expect(name);
        assert!(page.contains(&format!("<start> <length> {name}")), "{name}.md has the syntax");
        assert!(list.contains(&format!("| [{name}]({name}.md) |")), "README.md lists {name}");
    }
}
