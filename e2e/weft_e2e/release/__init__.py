"""What a release publishes besides the images: the chart in an OCI registry, and notes from the changelog."""

from weft_e2e.release.chart import package_chart, push_chart
from weft_e2e.release.errors import ReleaseError
from weft_e2e.release.versions import check_tag, release_notes

__all__ = ["ReleaseError", "check_tag", "package_chart", "push_chart", "release_notes"]
