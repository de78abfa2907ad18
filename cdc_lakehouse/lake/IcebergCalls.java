import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import org.apache.iceberg.*;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.catalog.TableIdentifierParser;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.expressions.Literal;
import org.apache.iceberg.relocated.com.google.common.util.concurrent.MoreExecutors;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.JsonUtil;

/**
 * What `iceberg_java` asks of Iceberg's table API, each in one call: requests are JSON, whose form is that module's.
 *
 * Janino, which Spark ships, compiles it, for all JVMs of an environment or for one. It knows neither lambdas nor type arguments.
 */
public class IcebergCalls {
  private Catalog catalog;

  public void use(Catalog ours) {
    catalog = ours;
  }

  public void create(String text) throws Exception {
    JsonNode request = json(text);
    Schema schema = SchemaParser.fromJson(request.get("schema"));
    Catalog.TableBuilder builder = catalog.buildTable(identifier(request.get("table")), schema);
    builder.withPartitionSpec(PartitionSpecParser.fromJson(schema, request.get("spec")));
    builder.withLocation(request.get("location").asText(null));
    builder.withProperties(JsonUtil.getStringMap("properties", request));
    builder.create();
  }

  public void removeTags(String text) throws Exception {
    JsonNode request = json(text);
    ManageSnapshots manage = load(request).manageSnapshots();
    for (Iterator names = request.get("names").elements(); names.hasNext(); ) {
      manage.removeTag(((JsonNode) names.next()).asText());
    }
    manage.commit();
  }

  public void removeDeletes(String text) throws Exception {
    JsonNode request = json(text);
    Table table = load(request);
    requireSnapshot(table, request);
    RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(request.get("snapshot").asLong());
    for (Iterator files = request.get("deletes").elements(); files.hasNext(); ) {
      rewrite.deleteFile((DeleteFile) file(files.next(), table));
    }
    rewrite.commit();
  }

  public void expireSnapshots(String text) throws Exception {
    JsonNode request = json(text);
    // Without a time, snapshots that are older than the table's own setting would expire too.
    ExpireSnapshots expire = load(request).expireSnapshots().expireOlderThan(0L);
    for (Iterator ids = request.get("snapshots").elements(); ids.hasNext(); ) {
      expire.expireSnapshotId(((JsonNode) ids.next()).asLong());
    }
    expire.commit();
  }

  /** Opens a transaction on a table that is at the request's snapshot, and changes its schema. */
  public Change begin(String text) throws Exception {
    JsonNode request = json(text);
    // Opening it refreshes: what was loaded may be older.
    Change change = new Change(load(request).newTransaction());
    requireSnapshot(change.table, request);
    if (request.hasNonNull("format-version")) {
      change.transaction.updateProperties().set("format-version", request.get("format-version").asText()).commit();
      change.changed = true;
    }
    for (Iterator steps = request.get("steps").elements(); steps.hasNext(); ) {
      change.evolve((JsonNode) steps.next());
    }
    return change;
  }

  /** Both in one call; gives the id of the new snapshot, if there is one. */
  public Long commit(String opening, String text) throws Exception {
    return begin(opening).commit(text);
  }

  private Table load(JsonNode request) {
    return catalog.loadTable(identifier(request.get("table")));
  }

  private static void requireSnapshot(Table table, JsonNode request) {
    Long wanted = JsonUtil.getLongOrNull("snapshot", request);
    Long found = snapshotOf(table);
    if (wanted == null ? found != null : !wanted.equals(found)) {
      throw new ValidationException("the table is at snapshot " + found + ", not at " + wanted, new Object[0]);
    }
  }

  static JsonNode json(String text) throws Exception {
    return JsonUtil.mapper().readTree(text);
  }

  static Long snapshotOf(Table table) {
    return table.currentSnapshot() == null ? null : Long.valueOf(table.currentSnapshot().snapshotId());
  }

  static Object file(Object node, Table table) {
    return ContentFileParser.fromJson((JsonNode) node, table.specs());
  }

  private static TableIdentifier identifier(JsonNode node) {
    return TableIdentifierParser.fromJson(node);
  }

  /** A column's default that its type cannot hold. */
  public static class NotOfItsType extends RuntimeException {
    NotOfItsType(String message) {
      super(message);
    }
  }

  /** An open transaction: schema, rows, deleted rows and properties of a table, seen together or not at all. */
  public static class Change {
    private static final ExecutorService IN_THIS_THREAD = MoreExecutors.newDirectExecutorService();
    final Transaction transaction;
    final Table table;
    private final Long expected;
    boolean changed = false;

    Change(Transaction opened) {
      transaction = opened;
      table = opened.table();
      expected = snapshotOf(table);
      // Iceberg reapplies a transaction to what another writer has committed meanwhile, so properties and marks would be
      // applied to a state that they were not meant for. It does not reapply a schema change, even an empty one.
      transaction.updateSchema().commit();
    }

    /** The schema inside the transaction, with field ids. */
    public String schema() {
      return SchemaParser.toJson(table.schema());
    }

    void evolve(JsonNode operations) throws Exception {
      UpdateSchema update = transaction.updateSchema();
      for (Iterator each = operations.elements(); each.hasNext(); ) {
        JsonNode operation = (JsonNode) each.next();
        String kind = operation.get("do").asText();
        String name = operation.get("name").asText();
        if (kind.equals("add")) {
          Type type = type(operation.get("type").asText());
          update.addColumn(null, name, type, null, literal(operation.get("default"), type));
        } else if (kind.equals("drop")) {
          update.deleteColumn(name);
        } else if (kind.equals("rename")) {
          update.renameColumn(name, operation.get("new_name").asText());
        } else if (kind.equals("widen")) {
          update.updateColumn(name, Types.fromPrimitiveString(operation.get("type").asText()));
        } else if (operation.hasNonNull("after")) {
          update.moveAfter(name, operation.get("after").asText());
        } else {
          update.moveFirst(name);
        }
      }
      update.commit();
      changed = true;
    }

    private static Type type(String name) {
      return name.equals("list<float>")
          ? (Type) Types.ListType.ofOptional(0, Types.FloatType.get())
          : (Type) Types.fromPrimitiveString(name);
    }

    /** Iceberg itself would treat a value that the type cannot hold as no default. */
    private static Literal literal(JsonNode value, Type type) throws Exception {
      if (value.isNull()) {
        return null;
      }
      Object found =
          value.isObject() ? (Object) ByteBuffer.wrap(value.get("base64").binaryValue())
          : value.isBoolean() ? (Object) Boolean.valueOf(value.booleanValue())
          : value.isIntegralNumber() ? (Object) Long.valueOf(value.longValue())
          : value.isNumber() ? (Object) Double.valueOf(value.doubleValue())
          : value.asText();
      Literal converted = Expressions.lit(found).to(type);
      if (converted == null) {
        throw new NotOfItsType(value + " is no value of the type " + type);
      }
      return converted;
    }

    public Long commit(String text) throws Exception {
      JsonNode request = json(text);
      JsonNode data = request.get("data");
      JsonNode deletes = request.get("deletes");
      JsonNode replaced = request.get("replaced");
      boolean made = true;
      if (request.get("replace-all").asBoolean()) {
        overwrite(data, request);
      } else if (data.size() + deletes.size() + replaced.size() > 0) {
        rowDelta(data, deletes, replaced, request);
      } else if (request.get("mark").asBoolean()) {
        finish(transaction.newFastAppend(), request);
      } else {
        made = false;
      }
      if (!request.get("properties").isEmpty()) {
        changeProperties(request.get("properties"));
      } else if (!(made || changed)) {
        return null;
      }
      if (!request.get("tags").isEmpty()) {
        changeTags(request.get("tags"));
      }
      Long snapshot = made ? snapshotOf(table) : null;
      transaction.commitTransaction();
      return snapshot;
    }

    private void rowDelta(JsonNode data, JsonNode deletes, JsonNode replaced, JsonNode request) {
      RowDelta delta = transaction.newRowDelta();
      for (Iterator each = data.elements(); each.hasNext(); ) {
        delta.addRows((DataFile) file(each.next(), table));
      }
      for (Iterator each = deletes.elements(); each.hasNext(); ) {
        delta.addDeletes((DeleteFile) file(each.next(), table));
      }
      for (Iterator each = replaced.elements(); each.hasNext(); ) {
        delta.removeDeletes((DeleteFile) file(each.next(), table));
      }
      if (expected != null) {
        delta.validateFromSnapshot(expected.longValue());
      }
      delta.conflictDetectionFilter(Expressions.alwaysTrue());
      delta.validateNoConflictingDataFiles();
      delta.validateNoConflictingDeleteFiles();
      if (deletes.size() > 0) {
        delta.validateDataFilesExist(JsonUtil.getStringList("referenced", request));
        delta.validateDeletedFiles();
      }
      finish(delta, request);
    }

    private void overwrite(JsonNode data, JsonNode request) {
      OverwriteFiles overwrite = transaction.newOverwrite().overwriteByRowFilter(Expressions.alwaysTrue());
      for (Iterator each = data.elements(); each.hasNext(); ) {
        overwrite.addFile((DataFile) file(each.next(), table));
      }
      if (expected != null) {
        overwrite.validateFromSnapshot(expected.longValue());
      }
      overwrite.conflictDetectionFilter(Expressions.alwaysTrue());
      overwrite.validateNoConflictingData();
      overwrite.validateNoConflictingDeletes();
      finish(overwrite, request);
    }

    /**
     * Makes the update work without Iceberg's thread pool when there is little to do: Iceberg polls every 10 ms whether
     * the pool is done, several times a commit, which is most of a commit's time.
     */
    private void finish(SnapshotUpdate update, JsonNode request) {
      update.writeManifestsWith(IN_THIS_THREAD, 1);
      // Iceberg caches what it has read, and the commit needs the manifests of the same snapshot.
      Snapshot now = table.currentSnapshot();
      if (now == null || now.allManifests(table.io()).size() <= request.get("few-manifests").asInt()) {
        update.scanManifestsWith(IN_THIS_THREAD);
      }
      for (Iterator each = JsonUtil.getStringMap("summary", request).entrySet().iterator(); each.hasNext(); ) {
        Map.Entry entry = (Map.Entry) each.next();
        update.set((String) entry.getKey(), (String) entry.getValue());
      }
      update.commit();
    }

    /** Of properties and of tags, a value of null removes. */
    private void changeProperties(JsonNode properties) {
      UpdateProperties update = transaction.updateProperties();
      for (Iterator each = properties.fields(); each.hasNext(); ) {
        Map.Entry property = (Map.Entry) each.next();
        JsonNode value = (JsonNode) property.getValue();
        if (value.isNull()) {
          update.remove((String) property.getKey());
        } else {
          update.set((String) property.getKey(), value.asText());
        }
      }
      update.commit();
    }

    private void changeTags(JsonNode tags) {
      ManageSnapshots manager = transaction.manageSnapshots();
      for (Iterator each = tags.fields(); each.hasNext(); ) {
        Map.Entry tag = (Map.Entry) each.next();
        String name = (String) tag.getKey();
        JsonNode snapshot = (JsonNode) tag.getValue();
        if (snapshot.isNull()) {
          manager.removeTag(name);
        } else if (table.refs().containsKey(name)) {
          manager.replaceTag(name, snapshot.asLong());
        } else {
          manager.createTag(name, snapshot.asLong());
        }
      }
      manager.commit();
    }
  }
}
