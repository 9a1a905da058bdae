"""What is wrong with an ElasticQuota, in words for its owner."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaFault:
    """One fault of one ElasticQuota: its key, the field, what is wrong, and what to do about it."""

    key: str
    field: str
    text: str
    remedy: str
    about: str = ""
    """What the fault is of, where that is no single object: the parent whose children ask too much."""
    excess: int = 0
    """By how much a bound is passed; 0 where there is none."""
    of_rights: bool = False
    """Whether it is a right that the configuration does not give: the manifest may be right elsewhere."""

    @property
    def told(self) -> str:
        """Of the object's condition and event."""
        return f"{self.field}: {self.text} ({self.remedy})"

    @property
    def place(self) -> tuple[str, str]:
        """The same for as long as the fault is there, whatever its numbers."""
        return self.about or self.key, self.field
